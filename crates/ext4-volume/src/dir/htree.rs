//! Ways through the index of a hashed directory.

use std::sync::Arc;

use onggi_block_device::AlignedBuf;
use onggi_disk_format::FileBlock;
use onggi_disk_format::ext4::Incompat;
use onggi_disk_format::ext4::dirhash::{Algorithm, HashVersion};
use onggi_disk_format::ext4::inode::Inode;

use super::NewEntry;
use super::block::{Block, Dir, Role, Room, Slot};
use super::index::Index;
use crate::{Handle, VolumeError};

/// Bytes of the root that say how names are hashed and how many levels lie below.
const HASH_VERSION: usize = 28;
const LEVELS: usize = 30;

/// An index block on the way and the entry taken there.
pub(super) struct Frame {
    pub(super) block: Block,
    pub(super) bytes: Arc<AlignedBuf>,
    pub(super) at: usize,
    root: bool,
    checksum: bool,
}

impl Frame {
    pub(super) fn index(&self) -> Option<Index<'_>> {
        if self.root {
            Index::of_root(&self.bytes, self.checksum)
        } else {
            Index::of_node(&self.bytes, self.checksum)
        }
    }
}

/// The way from the root to a leaf.
pub(super) struct Path {
    /// The root first.
    pub(super) frames: Vec<Frame>,
    pub(super) version: HashVersion,
    /// Leaves reached so far, against an index that runs in circles.
    steps: u32,
}

impl Path {
    /// The leaf reached.
    pub(super) fn leaf(&self) -> FileBlock {
        let last = self.frames.last().expect("the root is always there");
        last.index().map_or(FileBlock(0), |index| index.entry(last.at).block)
    }

    /// First hash of the leaf, as stored: a set low bit says that it starts in the leaf before.
    pub(super) fn lower(&self) -> u32 {
        let taken = self.frames.iter().rev().find(|frame| frame.at > 0);
        taken.and_then(|frame| Some(frame.index()?.hash(frame.at))).unwrap_or(0)
    }

    /// First hash of the next leaf, as stored; `None` in the last leaf.
    pub(super) fn upper(&self) -> Option<u32> {
        self.frames.iter().rev().find_map(|frame| {
            let index = frame.index()?;
            (frame.at + 1 < index.len()).then(|| index.hash(frame.at + 1))
        })
    }

    /// Whether the next leaf goes on with names of `hash`.
    pub(super) fn continues(&self, hash: u32) -> bool {
        self.upper() == Some(hash | 1)
    }

    /// Whether a name of `hash` may stand in the leaf.
    pub(super) fn covers(&self, hash: u32) -> bool {
        hash >= self.lower() & !1 && self.upper().is_none_or(|upper| hash < upper & !1 || hash | 1 == upper)
    }
}

impl Dir<'_> {
    /// Index levels below the root that a directory may have.
    pub(super) fn max_levels(&self) -> usize {
        if self.volume.sb.incompat().contains(Incompat::LARGEDIR) { 2 } else { 1 }
    }

    /// The hash that new directories use.
    pub(super) fn default_hash(&self) -> HashVersion {
        let sb = &self.volume.sb;
        let unsigned = sb.hash_unsigned();
        HashVersion::from_stored(sb.default_hash_version(), unsigned)
            .unwrap_or(HashVersion { algorithm: Algorithm::HalfMd4, unsigned })
    }

    /// Hash and minor hash of a name.
    pub(super) fn hash(&self, version: HashVersion, name: &[u8]) -> (u32, u32) {
        version.hash(name, self.volume.sb.hash_seed())
    }

    /// The root, with the hash and the levels it names.
    fn root(&self, inode: &Inode) -> Result<(Frame, HashVersion, usize), VolumeError> {
        let block = self.load(inode, FileBlock(0), Role::Root)?;
        let bytes = block.buffer.snapshot();
        let (version, levels) = (bytes[HASH_VERSION], usize::from(bytes[LEVELS]));
        if version == 6 {
            return Err(VolumeError::Unsupported { feature: "casefold" });
        }
        let version = HashVersion::from_stored(version, self.volume.sb.hash_unsigned())
            .ok_or_else(|| self.corrupt(block.nr, format_args!("hash version {version} is unknown")))?;
        if levels > self.max_levels() {
            return Err(self.corrupt(block.nr, format_args!("an index of {levels} levels below the root")));
        }
        let frame = Frame { block, bytes, at: 0, root: true, checksum: self.seed.is_some() };
        Ok((frame, version, levels))
    }

    fn node(&self, inode: &Inode, nr: FileBlock) -> Result<Frame, VolumeError> {
        let block = self.load(inode, nr, Role::Node)?;
        let bytes = block.buffer.snapshot();
        Ok(Frame { block, bytes, at: 0, root: false, checksum: self.seed.is_some() })
    }

    fn index<'f>(&self, frame: &'f Frame) -> Result<Index<'f>, VolumeError> {
        frame.index().ok_or_else(|| self.corrupt(frame.block.nr, "the index's count does not fit its block"))
    }

    /// The way to the first leaf that may hold a name; `choose` says which hash is wanted once it is known
    /// how the directory hashes.
    pub(super) fn probe(
        &self,
        inode: &Inode,
        choose: impl FnOnce(HashVersion) -> u32,
    ) -> Result<(Path, u32), VolumeError> {
        let (mut frame, version, levels) = self.root(inode)?;
        let hash = choose(version);
        let mut frames = Vec::with_capacity(levels + 1);
        loop {
            let index = self.index(&frame)?;
            let at = index.position(hash);
            let below = index.entry(at).block;
            frame.at = at;
            frames.push(frame);
            if frames.len() > levels {
                return Ok((Path { frames, version, steps: 1 }, hash));
            }
            frame = self.node(inode, below)?;
        }
    }

    /// Goes on to the next leaf; `false` when there is none.
    pub(super) fn advance(&self, inode: &Inode, path: &mut Path) -> Result<bool, VolumeError> {
        let depth = path.frames.len();
        let Some(level) = path
            .frames
            .iter()
            .rposition(|frame| frame.index().is_some_and(|index| frame.at + 1 < index.len()))
        else {
            return Ok(false);
        };
        path.steps += 1;
        if path.steps > self.blocks(inode) {
            return Err(self.corrupt(FileBlock(0), "the index names more leaves than there are blocks"));
        }
        path.frames[level].at += 1;
        path.frames.truncate(level + 1);
        while path.frames.len() < depth {
            let below = path.leaf();
            let frame = self.node(inode, below)?;
            self.index(&frame)?;
            path.frames.push(frame);
        }
        Ok(true)
    }

    /// Looks for a name in the one leaf that its hash leads to, and in those that go on with that hash.
    pub(super) fn find_indexed(&self, inode: &Inode, name: &[u8]) -> Result<Option<Slot>, VolumeError> {
        let (mut path, hash) = self.probe(inode, |version| self.hash(version, name).0)?;
        loop {
            let leaf = self.load(inode, path.leaf(), Role::Leaf)?;
            if let Some(slot) = self.scan(leaf, name)? {
                return Ok(Some(slot));
            }
            if !path.continues(hash) || !self.advance(inode, &mut path)? {
                return Ok(None);
            }
        }
    }

    /// Adds a name to the leaf that its hash leads to.
    pub(super) fn insert_indexed(
        &self,
        h: &mut Handle<'_>,
        inode: &mut Inode,
        new: &NewEntry<'_>,
    ) -> Result<(), VolumeError> {
        let (path, hash) = self.probe(inode, |version| self.hash(version, new.name).0)?;
        let leaf = self.load(inode, path.leaf(), Role::Leaf)?;
        match self.survey(&leaf, new.name)? {
            Room::Gap => self.put(h, &leaf, new),
            Room::Scattered => self.compact(h, &leaf, new),
            Room::None => self.split(h, inode, path, &leaf, new, hash),
        }
    }
}
