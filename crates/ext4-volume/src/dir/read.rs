//! Listing a directory.
//!
//! A cookie is a place in an order that never changes: `.`, `..`, then the names by hash. So a listing
//! goes on where it was although leaves split and names come and go.
//!
//! | cookie | goes on |
//! |---|---|
//! | 0, 1, 2 | at `.`, at `..`, at the first other name |
//! | 3 + key << 12 \| left | with the last `left` names of that key, then with the keys above |
//!
//! A key has 51 bits: 31 of the hash, 20 of the minor hash (of a CRC where the algorithm has no minor
//! hash). Names of one key are told apart by how many of them are still to come: removing names that were
//! already listed does not disturb that count. Cookies stay below 2^63.
//!
//! Without `dir_index`, and in directories of several blocks that have no index, entries never move; the
//! cookie is then one more than the byte at which the entry before starts.

use std::borrow::Cow;

use onggi_disk_format::checksum::crc32c;
use onggi_disk_format::ext4::FileType;
use onggi_disk_format::ext4::dirhash::{Algorithm, HashVersion};
use onggi_disk_format::ext4::inode::Inode;
use onggi_disk_format::{FileBlock, InodeNr};

use super::block::{Block, Dir, Role};
use super::htree::Path;
use crate::{Volume, VolumeError};

/// One name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawEntry {
    /// The inode it names.
    pub inode: InodeNr,
    /// The stored file type; 0 on volumes without `filetype`.
    pub kind: u8,
    /// The name.
    pub name: Vec<u8>,
    /// The cookie that goes on after this entry.
    pub next: u64,
}

const AT_DOTDOT: u64 = 1;
const AT_FIRST: u64 = 2;
const FIRST_KEY: u64 = 3;
const LEFT_BITS: u32 = 12;
const MINOR_BITS: u32 = 20;
/// More names than this with one hash are not listed.
const MOST_WITH_ONE_HASH: usize = 1 << 16;
/// Leaves read ahead, at least and at most.
const AHEAD: (usize, usize) = (8, 64);

/// Up to `max` entries from `cookie` on: 0, or the `next` of some entry. An empty answer means the end.
///
/// # Errors
/// A broken or unsupported directory; the device's.
pub fn read(
    volume: &Volume,
    nr: InodeNr,
    inode: &Inode,
    cookie: u64,
    max: usize,
) -> Result<Vec<RawEntry>, VolumeError> {
    let dir = Dir::open(volume, nr, inode)?;
    let mut listing = Listing { out: Vec::new(), max, from: Start::decode(cookie) };
    if max == 0 {
        return Ok(listing.out);
    }
    if !dir.is_hash_ordered(inode) {
        dir.read_by_offset(inode, cookie, &mut listing)?;
        return Ok(listing.out);
    }
    if cookie < AT_FIRST {
        dir.read_dots(inode, cookie, &mut listing)?;
    }
    if dir.is_indexed(inode) {
        dir.read_indexed(inode, &mut listing)?;
    } else {
        let block = dir.load(inode, FileBlock(0), Role::Leaf)?;
        let bytes = block.buffer.snapshot();
        let mut names = dir.named(&block, &bytes, dir.default_hash(), &listing.from, None)?;
        names.sort_unstable();
        listing.emit(&names);
    }
    Ok(listing.out)
}

/// Where a listing by hash goes on.
struct Start {
    key: u64,
    /// Names of that key still to come; all of them at the start.
    left: usize,
}

impl Start {
    fn decode(cookie: u64) -> Self {
        match cookie.checked_sub(FIRST_KEY) {
            Some(place) => Self { key: place >> LEFT_BITS, left: (place & ((1 << LEFT_BITS) - 1)) as usize },
            None => Self { key: 0, left: usize::MAX },
        }
    }

    /// The hash in the key.
    fn hash(&self) -> u32 {
        ((self.key >> MINOR_BITS) as u32) << 1
    }
}

/// A name with its place in the order.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Named<'a> {
    key: u64,
    name: Cow<'a, [u8]>,
    inode: InodeNr,
    kind: u8,
}

impl Named<'_> {
    fn hash(&self) -> u32 {
        ((self.key >> MINOR_BITS) as u32) << 1
    }

    fn into_owned(self) -> Named<'static> {
        let Self { key, name, inode, kind } = self;
        Named { key, name: Cow::Owned(name.into_owned()), inode, kind }
    }
}

struct Listing {
    out: Vec<RawEntry>,
    max: usize,
    from: Start,
}

impl Listing {
    fn is_full(&self) -> bool {
        self.out.len() >= self.max
    }

    fn push(&mut self, inode: InodeNr, kind: u8, name: &[u8], next: u64) {
        if !self.is_full() {
            self.out.push(RawEntry { inode, kind, name: name.to_vec(), next });
        }
    }

    /// Lists sorted names; every key among them is there with all its names.
    fn emit(&mut self, names: &[Named<'_>]) {
        for group in names.chunk_by(|one, next| one.key == next.key) {
            let key = group[0].key;
            let skip = match key.cmp(&self.from.key) {
                std::cmp::Ordering::Less => group.len(),
                std::cmp::Ordering::Equal => group.len().saturating_sub(self.from.left),
                std::cmp::Ordering::Greater => 0,
            };
            for (index, named) in group.iter().enumerate().skip(skip) {
                let left = (group.len() - index - 1).min((1 << LEFT_BITS) - 1) as u64;
                self.push(named.inode, named.kind, &named.name, FIRST_KEY + (key << LEFT_BITS | left));
            }
            if self.is_full() {
                return;
            }
        }
    }
}

fn key(version: HashVersion, name: &[u8], hash: u32, minor: u32) -> u64 {
    let minor = if version.algorithm == Algorithm::Legacy { crc32c(!0, name) } else { minor };
    u64::from(hash >> 1) << MINOR_BITS | u64::from(minor >> (32 - MINOR_BITS))
}

impl Dir<'_> {
    fn read_dots(&self, inode: &Inode, cookie: u64, listing: &mut Listing) -> Result<(), VolumeError> {
        let kind = self.stored_kind(FileType::Directory as u8);
        if cookie < AT_DOTDOT {
            listing.push(self.nr, kind, b".", AT_DOTDOT);
        }
        let slot = self.find(inode, b"..")?;
        let parent = slot.ok_or_else(|| self.corrupt(FileBlock(0), "there is no '..'"))?.found.inode;
        listing.push(parent, kind, b"..", AT_FIRST);
        Ok(())
    }

    /// The names of a leaf from `from` on, `.` and `..` left out, in no order. `path` leads to the leaf.
    fn named<'b>(
        &self,
        block: &Block,
        bytes: &'b [u8],
        version: HashVersion,
        from: &Start,
        path: Option<&Path>,
    ) -> Result<Vec<Named<'b>>, VolumeError> {
        let bounds = path.map(|path| (path.lower() & !1, path.upper()));
        let mut names = Vec::new();
        for entry in self.live(block, bytes) {
            let entry = entry?;
            if matches!(entry.name, b"." | b"..") {
                continue;
            }
            let (hash, minor) = self.hash(version, entry.name);
            if let Some((lower, upper)) = bounds {
                // A name that its hash does not lead to would send the listing back, again and again.
                if hash < lower || upper.is_some_and(|upper| hash >= upper & !1 && hash | 1 != upper) {
                    let rule =
                        format_args!("a name with hash {hash:#010x} stands outside its leaf").to_string();
                    return Err(self.corrupt(block.nr, rule));
                }
            }
            let key = key(version, entry.name, hash, minor);
            if key >= from.key {
                let kind = self.stored_kind(entry.kind);
                names.push(Named { key, name: Cow::Borrowed(entry.name), inode: entry.inode, kind });
            }
        }
        Ok(names)
    }

    fn read_indexed(&self, inode: &Inode, listing: &mut Listing) -> Result<(), VolumeError> {
        if listing.is_full() {
            return Ok(());
        }
        let (mut path, _) = self.probe(inode, |_| listing.from.hash())?;
        // Names of the one hash that goes on in the next leaf wait here for the others.
        let mut waiting: Vec<Named<'static>> = Vec::new();
        loop {
            self.read_ahead_leaves(inode, &path, listing.max)?;
            let block = self.load(inode, path.leaf(), Role::Leaf)?;
            let bytes = block.buffer.snapshot();
            let mut names: Vec<Named<'_>> = std::mem::take(&mut waiting);
            names.extend(self.named(&block, &bytes, path.version, &listing.from, Some(&path))?);
            names.sort_unstable();
            let upper = path.upper();
            let done = match upper {
                Some(upper) if upper & 1 == 1 => names.partition_point(|named| named.hash() < upper & !1),
                _ => names.len(),
            };
            let rest = names.split_off(done);
            listing.emit(&names);
            if listing.is_full() || upper.is_none() {
                return Ok(());
            }
            if rest.len() > MOST_WITH_ONE_HASH {
                return Err(self.corrupt(block.nr, "too many names with one hash"));
            }
            waiting = rest.into_iter().map(Named::into_owned).collect();
            self.advance(inode, &mut path)?;
        }
    }

    /// Asks for the leaves that follow when the next one is not in memory.
    fn read_ahead_leaves(&self, inode: &Inode, path: &Path, max: usize) -> Result<(), VolumeError> {
        let first = self.locate(inode, path.leaf())?;
        if self.volume.buffers.peek(first).is_some() {
            return Ok(());
        }
        let Some((at, index)) = path.frames.last().and_then(|frame| Some((frame.at, frame.index()?))) else {
            return Ok(());
        };
        let per_leaf = (self.leaf_room() / 32).max(1);
        let count = (max / per_leaf + 1).clamp(AHEAD.0, AHEAD.1).min(index.len() - at);
        let mut places = vec![first];
        for step in 1..count {
            places.push(self.locate(inode, index.entry(at + step).block)?);
        }
        Ok(self.volume.buffers.read_ahead(&places)?)
    }

    fn read_by_offset(&self, inode: &Inode, cookie: u64, listing: &mut Listing) -> Result<(), VolumeError> {
        let block_size = u64::from(self.volume.block_size());
        let first = u32::try_from(cookie / block_size).unwrap_or(u32::MAX);
        for nr in first..self.blocks(inode) {
            self.read_ahead_linear(inode, nr)?;
            let block = self.load(inode, FileBlock(nr), self.linear_role(inode))?;
            let bytes = block.buffer.snapshot();
            for entry in self.live(&block, &bytes) {
                let entry = entry?;
                let at = u64::from(nr) * block_size + entry.offset as u64;
                if at >= cookie {
                    listing.push(entry.inode, self.stored_kind(entry.kind), entry.name, at + 1);
                }
            }
            if listing.is_full() {
                return Ok(());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(key: u64, name: &'static str) -> Named<'static> {
        Named { key, name: Cow::Borrowed(name.as_bytes()), inode: InodeNr(12), kind: 1 }
    }

    /// What a reader gets who takes one entry at a time while `change` happens after each.
    fn one_by_one(names: &mut Vec<Named<'static>>, change: impl Fn(&mut Vec<Named<'static>>)) -> Vec<String> {
        let mut seen = Vec::new();
        let mut cookie = AT_FIRST;
        loop {
            let mut listing = Listing { out: Vec::new(), max: 1, from: Start::decode(cookie) };
            listing.emit(names);
            let Some(entry) = listing.out.pop() else { return seen };
            seen.push(String::from_utf8(entry.name).unwrap());
            cookie = entry.next;
            change(names);
        }
    }

    #[test]
    fn names_of_one_key_come_one_at_a_time() {
        let last = u64::MAX >> (64 - 31 - MINOR_BITS);
        let mut names = vec![
            named(0, "a"),
            named(0, "b"),
            named(7, "c"),
            named(7, "d"),
            named(7, "e"),
            named(last - 1, "f"),
        ];
        assert_eq!(one_by_one(&mut names, |_| ()), ["a", "b", "c", "d", "e", "f"]);
        // Whoever removes what was listed still gets the rest.
        assert_eq!(one_by_one(&mut names, |names| drop(names.remove(0))), ["a", "b", "c", "d", "e", "f"]);
    }

    #[test]
    fn cookies_fit_a_signed_offset_and_come_back() {
        let version = HashVersion { algorithm: Algorithm::HalfMd4, unsigned: false };
        let largest = key(version, b"x", 0xffff_fffc, u32::MAX);
        let cookie = FIRST_KEY + (largest << LEFT_BITS | 4095);
        assert!(cookie < 1 << 63);
        let start = Start::decode(cookie);
        assert_eq!((start.key, start.left, start.hash()), (largest, 4095, 0xffff_fffc));
        assert_eq!(Start::decode(AT_FIRST).left, usize::MAX);
    }
}
