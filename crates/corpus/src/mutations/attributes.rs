//! Extended attributes.

use onggi_disk_format::ext4::inode;
use onggi_disk_format::ext4::xattr::{BLOCK_HEADER, INODE_HEADER, RawXattrEntry, RawXattrHeader};

use crate::field::{Field, Order, fields};
use crate::survey::{Survey, Used, block_mut};
use crate::{Random, seal, value};

/// Bytes of an entry before its name.
const ENTRY: usize = size_of::<RawXattrEntry>();

/// Where entries start, from `first` on.
fn entries(bytes: &[u8], first: usize) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = first;
    while let Some(entry) = bytes.get(at..at + ENTRY) {
        if entry[..4] == [0; 4] {
            break;
        }
        found.push(at);
        at += (ENTRY + usize::from(entry[0])).next_multiple_of(4);
    }
    found
}

fn entry_fields(at: usize) -> Vec<Field> {
    let mut fields = fields!(RawXattrEntry: e_name_len e_name_index e_value_offs e_value_inum e_value_size
        e_hash);
    for field in &mut fields {
        field.offset += at;
    }
    fields
}

/// The header or an entry of an attribute block.
pub(super) fn block(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let owned = *random.pick(&survey.xattr_blocks)?;
    let bytes = block_mut(image, survey, owned.place)?;
    let entries = entries(bytes, BLOCK_HEADER);
    let fields = match random.pick(&entries).filter(|_| random.chance(2, 3)) {
        Some(&at) => entry_fields(at),
        None => fields!(RawXattrHeader: h_magic h_refcount h_blocks h_hash),
    };
    let text = value::spoil(bytes, &fields, Order::Little, Some(survey), random)?;
    seal::xattr_block(image, survey, owned.place);
    Some(format!("attribute block {} of inode {}: {text}", owned.place, owned.owner))
}

/// The header or an entry of the attributes in an inode.
pub(super) fn in_inode(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let holds = |used: &&Used, image: &mut [u8]| {
        let area = inode::xattr_area(&survey.sb, used.inode.extra_isize)?;
        let bytes = survey.inode_bytes(image, used.nr)?;
        (bytes[area.start..area.start + 4] != [0; 4]).then_some(area)
    };
    let mut with = Vec::new();
    for used in &survey.inodes {
        if let Some(area) = holds(&used, image) {
            with.push((used.nr, area));
        }
    }
    let (nr, area) = random.pick(&with)?.clone();
    let bytes = survey.inode_bytes(image, nr)?;
    let entries = entries(bytes, area.start + INODE_HEADER);
    let fields = match random.pick(&entries).filter(|_| random.chance(4, 5)) {
        Some(&at) => entry_fields(at),
        None => vec![Field::new("h_magic", area.start, 4)],
    };
    let text = value::spoil(bytes, &fields, Order::Little, Some(survey), random)?;
    seal::inode(image, survey, nr);
    Some(format!("attributes in inode {nr}: {text}"))
}
