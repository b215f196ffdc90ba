//! Directory blocks and indexes.

use onggi_disk_format::ext4::htree::{NODE_ENTRIES, ROOT_ENTRIES, Shape};
use onggi_disk_format::ext4::{FileType, dir, htree};

use crate::field::{Field, Order};
use crate::survey::{Survey, block, block_mut};
use crate::{Random, seal, value};

/// An entry: its numbers or its name.
pub(super) fn entry(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let leaf = *random.pick(&survey.leaves)?;
    let tail = survey.sb.has_metadata_csum();
    let bytes = block_mut(image, survey, leaf.place)?;
    let entries: Vec<(usize, usize)> = dir::entries(bytes, u32::MAX, tail)
        .map_while(Result::ok)
        .map(|entry| (entry.offset, entry.name.len()))
        .collect();
    let (offset, name_len) = *random.pick(&entries)?;
    let text = if name_len > 0 && random.chance(1, 3) {
        let at = offset + dir::ENTRY_HEADER + random.index(name_len);
        let byte = *random.pick(b"\0/.\xff\n\x7fa")?;
        bytes[at] = byte;
        format!("a byte of its name becomes {byte:#x}")
    } else if random.chance(1, 4) {
        let (from, _) = *random.pick(&entries)?;
        let header = bytes[from..from + 4].to_vec();
        bytes[offset..offset + 4].copy_from_slice(&header);
        format!("takes the inode of the entry at {from}")
    } else {
        let fields = [
            Field::new("inode", 0, 4),
            Field::new("rec_len", 4, 2),
            Field::new("name_len", 6, 1),
            Field::new("file_type", 7, 1),
        ];
        value::spoil(&mut bytes[offset..offset + 8], &fields, Order::Little, Some(survey), random)?
    };
    seal::directory(image, survey, leaf.place, leaf.seed);
    Some(format!("entry at {offset} in block {} of directory {}: {text}", leaf.place, leaf.owner))
}

/// An entry that leads to a directory it must not: itself, an ancestor, the root, another's child.
pub(super) fn cycle(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let leaf = *random.pick(&survey.leaves)?;
    let target = match random.below(3) {
        0 => leaf.owner,
        1 => onggi_disk_format::ext4::superblock::ROOT_INODE,
        _ => survey.directory(random)?.nr,
    };
    let tail = survey.sb.has_metadata_csum();
    let bytes = block_mut(image, survey, leaf.place)?;
    let entries: Vec<usize> = dir::entries(bytes, u32::MAX, tail)
        .map_while(Result::ok)
        .filter(|entry| entry.inode.0 != 0)
        .map(|entry| entry.offset)
        .collect();
    let offset = *random.pick(&entries)?;
    dir::replace(bytes, tail, offset, target, FileType::Directory as u8).ok()?;
    seal::directory(image, survey, leaf.place, leaf.seed);
    Some(format!(
        "entry at {offset} in block {} of directory {} leads to directory {target}",
        leaf.place, leaf.owner
    ))
}

/// A block of a hashed directory's index.
pub(super) fn index(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let node = *random.pick(&survey.indexes)?;
    let bytes = block(image, survey, node.place)?;
    let start = if htree::shape(bytes) == Shape::Root { ROOT_ENTRIES } else { NODE_ENTRIES };
    let count = usize::from(u16::from_le_bytes([bytes[start + 2], bytes[start + 3]]));
    let entry = start + 8 * random.index(count.max(1));
    let mut fields = vec![
        Field::new("limit", start, 2),
        Field::new("count", start + 2, 2),
        Field::new("block of an entry", entry + 4, 4),
        Field::new("block of an entry", entry + 4, 4),
        Field::new("block of the first entry", start + 4, 4),
    ];
    if entry > start {
        fields.push(Field::new("hash of an entry", entry, 4));
    }
    if start == ROOT_ENTRIES {
        fields.extend([
            Field::new("hash_version", 28, 1),
            Field::new("info_length", 29, 1),
            Field::new("indirect_levels", 30, 1),
            Field::new("unused_flags", 31, 1),
            Field::new("reserved_zero", 24, 4),
            Field::new("inode of ..", 12, 4),
            Field::new("rec_len of ..", 16, 2),
        ]);
    }
    let bytes = block_mut(image, survey, node.place)?;
    let text = value::spoil(bytes, &fields, Order::Little, Some(survey), random)?;
    seal::directory(image, survey, node.place, node.seed);
    Some(format!("index block {} of directory {}: {text}", node.place, node.owner))
}
