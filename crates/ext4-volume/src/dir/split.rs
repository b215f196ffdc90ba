//! Growing the index of a hashed directory.

use onggi_disk_format::FileBlock;
use onggi_disk_format::ext4::htree::{self as format, DxEntry, DxNode, HtreeError, RootInfo};
use onggi_disk_format::ext4::inode::{Inode, InodeFlags};
use onggi_disk_format::ext4::{FileType, dirhash::HashVersion};

use super::NewEntry;
use super::block::{Block, Dir, Entry, Role};
use super::htree::Path;
use crate::{Handle, VolumeError};

impl Dir<'_> {
    /// Splits a full leaf in two, with the new entry in its place, and every full index block above it.
    pub(super) fn split(
        &self,
        h: &mut Handle<'_>,
        inode: &mut Inode,
        path: Path,
        leaf: &Block,
        new: &NewEntry<'_>,
        hash: u32,
    ) -> Result<(), VolumeError> {
        let bytes = leaf.buffer.snapshot();
        let all = self.sorted(leaf, &bytes, path.version, new, hash)?;
        if let Some(stray) = all.iter().find(|entry| !path.covers(entry.hash)) {
            let rule =
                format_args!("a name with hash {:#010x} stands outside its leaf", stray.hash).to_string();
            return Err(self.corrupt(leaf.nr, rule));
        }
        let cut = cut(&all, self.leaf_room())
            .ok_or_else(|| self.corrupt(leaf.nr, "its names fit no two leaves"))?;
        let mut nodes = self.parse(&path)?;
        let full =
            nodes.iter().rev().take_while(|node| node.entries.len() >= usize::from(node.limit)).count();
        if full == nodes.len() && nodes.len() > self.max_levels() {
            return Err(VolumeError::NoSpace);
        }
        let blocks: Vec<Block> = path.frames.iter().map(|frame| frame.block.clone()).collect();
        let positions: Vec<usize> = path.frames.iter().map(|frame| frame.at).collect();
        drop(path);
        let mut fresh = self.append(h, inode, 1 + full as u32)?;
        let right = fresh.remove(0);
        self.fill(h, &right, all[cut..].iter())?;
        self.fill(h, leaf, all[..cut].iter())?;

        let mut carry = DxEntry { hash: boundary(&all, cut), block: right.nr };
        for level in (0..nodes.len()).rev() {
            let (node, at) = (&mut nodes[level], positions[level]);
            if node.entries.len() < usize::from(node.limit) {
                node.entries.insert(at + 1, carry);
                return self.write_index(h, &blocks[level], node.root.as_ref(), &node.entries);
            }
            let below = fresh.remove(0);
            if let Some(root) = &node.root {
                // All that the root held goes one level down, where there is room for a few more.
                node.entries.insert(at + 1, carry);
                self.write_index(h, &below, None, &node.entries)?;
                let root = RootInfo { levels: root.levels + 1, ..*root };
                let only = DxEntry { hash: 0, block: below.nr };
                return self.write_index(h, &blocks[level], Some(&root), &[only]);
            }
            let half = node.entries.len() / 2;
            let mut upper = node.entries.split_off(half);
            let first = upper[0].hash;
            if at >= half {
                upper.insert(at - half + 1, carry);
            } else {
                node.entries.insert(at + 1, carry);
            }
            self.write_index(h, &below, None, &upper)?;
            self.write_index(h, &blocks[level], None, &node.entries)?;
            carry = DxEntry { hash: first, block: below.nr };
        }
        Ok(())
    }

    /// Turns a directory of one full block into an indexed one: its names move to one or two new leaves.
    pub(super) fn make_indexed(
        &self,
        h: &mut Handle<'_>,
        inode: &mut Inode,
        new: &NewEntry<'_>,
    ) -> Result<(), VolumeError> {
        let first = self.load(inode, FileBlock(0), Role::Leaf)?;
        let bytes = first.buffer.snapshot();
        let mut dots = self.live(&first, &bytes).take(2);
        let (Some(dot), Some(dotdot)) = (dots.next().transpose()?, dots.next().transpose()?) else {
            return Err(self.corrupt(first.nr, "it does not start with '.' and '..'"));
        };
        if dot.name != b"." || dotdot.name != b".." {
            return Err(self.corrupt(first.nr, "it does not start with '.' and '..'"));
        }
        let version = self.default_hash();
        let hash = self.hash(version, new.name).0;
        let mut all = self.sorted(&first, &bytes, version, new, hash)?;
        all.retain(|entry| !matches!(entry.name, b"." | b".."));
        let room = self.leaf_room();
        let cut = if all.iter().map(Entry::size).sum::<usize>() <= room {
            all.len()
        } else {
            cut(&all, room).ok_or_else(|| self.corrupt(first.nr, "its names fit no two leaves"))?
        };
        let leaves = self.append(h, inode, if cut < all.len() { 2 } else { 1 })?;
        self.fill(h, &leaves[0], all[..cut].iter())?;
        let mut entries = vec![DxEntry { hash: 0, block: leaves[0].nr }];
        if let Some(right) = leaves.get(1) {
            self.fill(h, right, all[cut..].iter())?;
            entries.push(DxEntry { hash: boundary(&all, cut), block: right.nr });
        }
        let root = RootInfo { dot: self.nr, dotdot: dotdot.inode, hash_version: version.stored(), levels: 0 };
        self.write_index(h, &first, Some(&root), &entries)?;
        inode.flags.insert(InodeFlags::INDEX);
        Ok(())
    }

    /// The entries of a leaf and the new one, by hash.
    fn sorted<'b>(
        &self,
        leaf: &Block,
        bytes: &'b [u8],
        version: HashVersion,
        new: &NewEntry<'b>,
        hash: u32,
    ) -> Result<Vec<Entry<'b>>, VolumeError> {
        let mut all = Vec::new();
        for entry in self.live(leaf, bytes) {
            let entry = entry?;
            let hash = self.hash(version, entry.name).0;
            all.push(Entry { hash, inode: entry.inode, kind: entry.kind, name: entry.name });
        }
        all.push(Entry { hash, inode: new.target, kind: new.kind, name: new.name });
        all.sort_by_key(|entry| entry.hash);
        Ok(all)
    }

    /// The index blocks on a way, checked and ready to change.
    fn parse(&self, path: &Path) -> Result<Vec<DxNode>, VolumeError> {
        let parse = |(level, frame): (usize, &super::htree::Frame)| {
            let parsed = if level == 0 {
                DxNode::parse_root(&frame.bytes, self.seed)
            } else {
                DxNode::parse_node(&frame.bytes, self.seed)
            };
            parsed.map_err(|rule| self.corrupt(frame.block.nr, rule))
        };
        path.frames.iter().enumerate().map(parse).collect()
    }

    fn write_index(
        &self,
        h: &mut Handle<'_>,
        block: &Block,
        root: Option<&RootInfo>,
        entries: &[DxEntry],
    ) -> Result<(), VolumeError> {
        let kind = self.stored_kind(FileType::Directory as u8);
        let done: Result<(), HtreeError> = h.modify(&block.buffer, |bytes| match root {
            Some(root) => format::encode_root(bytes, root, kind, entries, self.seed),
            None => format::encode_node(bytes, entries, self.seed),
        })?;
        done.map_err(|rule| self.corrupt(block.nr, rule))
    }
}

/// What the index says of the leaf that starts with entry `cut`: its hash, with the low bit set where
/// that hash starts in the leaf before.
fn boundary(all: &[Entry<'_>], cut: usize) -> u32 {
    let hash = all[cut].hash;
    hash | u32::from(all[cut - 1].hash == hash)
}

/// Where to cut sorted entries so that both parts fit `room` bytes, are about even, and names of one hash
/// stay together where they can. `None` when no cut fits.
fn cut(all: &[Entry<'_>], room: usize) -> Option<usize> {
    let total: usize = all.iter().map(Entry::size).sum();
    let mut left = 0;
    let mut best = None;
    for cut in 1..all.len() {
        left += all[cut - 1].size();
        let right = total - left;
        if left > room || right > room {
            continue;
        }
        let torn = all[cut - 1].hash == all[cut].hash;
        let cost = (torn, left.abs_diff(right));
        if best.is_none_or(|(least, _)| cost < least) {
            best = Some((cost, cut));
        }
    }
    best.map(|(_, cut)| cut)
}

#[cfg(test)]
mod tests {
    use onggi_disk_format::InodeNr;

    use super::*;

    fn entries(names: &[(u32, usize)]) -> Vec<Entry<'static>> {
        static NAME: [u8; 255] = [b'n'; 255];
        names
            .iter()
            .map(|&(hash, len)| Entry { hash, inode: InodeNr(12), kind: 1, name: &NAME[..len] })
            .collect()
    }

    #[test]
    fn cuts_evenly_and_keeps_hashes_together() {
        let even = entries(&[(2, 8), (4, 8), (6, 8), (8, 8)]);
        assert_eq!(cut(&even, 1012), Some(2));
        assert_eq!(boundary(&even, 2), 6);
        let together = entries(&[(2, 8), (4, 8), (4, 8), (8, 8), (10, 8), (12, 8)]);
        assert_eq!(cut(&together, 1012), Some(3));
        let skewed = entries(&[(2, 8), (4, 8), (4, 8), (4, 8), (4, 8)]);
        assert_eq!(cut(&skewed, 1012), Some(1), "a lopsided cut beats a torn hash");
    }

    #[test]
    fn tears_a_hash_only_when_it_must() {
        let one_hash = entries(&[(4, 255), (4, 255), (4, 255), (4, 255)]);
        let at = cut(&one_hash, 1012).unwrap();
        assert_eq!((at, boundary(&one_hash, at)), (2, 5));
        assert_eq!(cut(&entries(&[(4, 255)]), 1012), None);
    }
}
