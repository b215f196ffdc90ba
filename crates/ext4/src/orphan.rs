//! Orphans: inodes that recovery must finish with, because they have no name or are being truncated.
//!
//! The volume keeps them in a list threaded through `i_dtime` with its head in the superblock, or, with
//! the `orphan_file` feature, in slots of the orphan file's blocks.

use std::collections::{BTreeMap, HashMap};

use onggi_disk_format::ext4::{Inode as DiskInode, RoCompat, inode_seed, orphan};
use onggi_disk_format::{DiskBlock, FileBlock, InodeNr};
use onggi_ext4_volume::extents::{self, Mapping};
use onggi_ext4_volume::{Handle, Place, Volume, VolumeError};
use parking_lot::Mutex;

use crate::core::Result;

/// Blocks that entering or leaving may change.
pub(crate) const CREDITS: u32 = 4;

/// The orphans of a mounted volume. One lock, held for a few block changes; it ranks below every inode's
/// `state`.
pub(crate) struct Orphans {
    place: Mutex<OrphanPlace>,
}

enum OrphanPlace {
    List(List),
    File(Slots),
}

/// The threaded list: neighbours of each member.
#[derive(Default)]
struct List {
    head: Option<InodeNr>,
    links: HashMap<InodeNr, Links>,
}

#[derive(Clone, Copy, Default)]
struct Links {
    previous: Option<InodeNr>,
    next: Option<InodeNr>,
}

/// The orphan file: free slots and who has which.
struct Slots {
    nr: InodeNr,
    seed: u32,
    blocks: Vec<DiskBlock>,
    taken: HashMap<InodeNr, (usize, usize)>,
    free: BTreeMap<(usize, usize), ()>,
}

impl Orphans {
    /// Reads who is an orphan, oldest last; the list is checked for loops and numbers outside the volume.
    pub(crate) fn open(volume: &Volume) -> Result<(Self, Vec<InodeNr>)> {
        let superblock = volume.current_superblock()?;
        let mut found = Vec::new();
        let mut list = List::default();
        let mut next = superblock.last_orphan();
        while let Some(nr) = next {
            if list.links.contains_key(&nr) {
                return Err(VolumeError::corrupt(
                    "orphan list",
                    Place::Inode(nr),
                    "the list runs in a circle",
                ));
            }
            let inode = volume.read_inode(nr)?;
            let previous = found.last().copied();
            next = (inode.dtime != 0).then_some(InodeNr(inode.dtime));
            list.links.insert(nr, Links { previous, next });
            found.push(nr);
        }
        list.head = superblock.last_orphan();
        let place = match superblock.orphan_file() {
            None => OrphanPlace::List(list),
            Some(nr) => {
                let slots = Slots::open(volume, nr)?;
                found.extend(slots.taken.keys());
                OrphanPlace::File(slots)
            }
        };
        Ok((Self { place: Mutex::new(place) }, found))
    }

    /// Puts an inode among the orphans. Its own fields are saved by the caller, through
    /// [`Orphans::save_orphan`].
    pub(crate) fn add(&self, volume: &Volume, h: &mut Handle<'_>, nr: InodeNr) -> Result<()> {
        match &mut *self.place.lock() {
            OrphanPlace::File(slots) => slots.add(volume, h, nr),
            OrphanPlace::List(list) => {
                let next = list.head.replace(nr);
                list.links.insert(nr, Links { previous: None, next });
                if let Some(next) = next {
                    list.links.entry(next).or_default().previous = Some(nr);
                }
                volume.update_superblock(h, |raw| raw.s_last_orphan.set(nr.0))
            }
        }
    }

    /// Writes an orphan's fields with its link to the next one.
    pub(crate) fn save_orphan(
        &self,
        volume: &Volume,
        h: &mut Handle<'_>,
        nr: InodeNr,
        disk: &mut DiskInode,
    ) -> Result<()> {
        let place = self.place.lock();
        if let OrphanPlace::List(list) = &*place {
            disk.dtime = list.links.get(&nr).and_then(|links| links.next).map_or(0, |next| next.0);
        }
        volume.write_inode(h, nr, disk)
    }

    /// Takes an inode out. The caller sets its `dtime` afterwards and saves it.
    pub(crate) fn remove(&self, volume: &Volume, h: &mut Handle<'_>, nr: InodeNr) -> Result<()> {
        let mut place = self.place.lock();
        let list = match &mut *place {
            OrphanPlace::File(slots) if slots.taken.contains_key(&nr) => return slots.remove(volume, h, nr),
            OrphanPlace::File(_) => return Ok(()),
            OrphanPlace::List(list) => list,
        };
        let Some(links) = list.links.remove(&nr) else { return Ok(()) };
        if let Some(next) = links.next {
            list.links.entry(next).or_default().previous = links.previous;
        }
        let next = links.next.map_or(0, |next| next.0);
        match links.previous {
            None => {
                list.head = links.next;
                volume.update_superblock(h, |raw| raw.s_last_orphan.set(next))
            }
            Some(previous) => {
                list.links.entry(previous).or_default().next = links.next;
                // Read from the buffer under this lock: the neighbour's own saves take it too.
                let mut neighbour = volume.read_inode(previous)?;
                neighbour.dtime = next;
                volume.write_inode(h, previous, &neighbour)
            }
        }
    }

    /// Whether the superblock must say that the orphan file may hold something.
    pub(crate) fn uses_file(&self) -> bool {
        matches!(&*self.place.lock(), OrphanPlace::File(_))
    }

    pub(crate) fn is_empty(&self) -> bool {
        match &*self.place.lock() {
            OrphanPlace::List(list) => list.links.is_empty(),
            OrphanPlace::File(slots) => slots.taken.is_empty(),
        }
    }
}

impl Slots {
    fn open(volume: &Volume, nr: InodeNr) -> Result<Self> {
        let inode = volume.read_inode(nr)?;
        let count = inode.size / u64::from(volume.block_size());
        if count == 0 || count > 1024 {
            return Err(VolumeError::corrupt(
                "orphan file",
                Place::Inode(nr),
                "its size is not 1 to 1024 blocks",
            ));
        }
        let seed = inode_seed(volume.sb.csum_seed(), nr, inode.generation);
        let mut slots = Self { nr, seed, blocks: Vec::new(), taken: HashMap::new(), free: BTreeMap::new() };
        for index in 0..count as u32 {
            let Mapping::Mapped { start, .. } = extents::lookup(volume, nr, &inode, FileBlock(index))? else {
                return Err(VolumeError::corrupt("orphan file", Place::FileBlock(nr, index), "a hole"));
            };
            slots.blocks.push(start);
            slots.read(volume, index as usize, start)?;
        }
        Ok(slots)
    }

    fn read(&mut self, volume: &Volume, index: usize, block: DiskBlock) -> Result<()> {
        let buffer = volume.buffers.read(block)?;
        let bytes = buffer.snapshot();
        let used = orphan::parse(&bytes, volume.sb.inodes_count(), self.checksum(volume, block)).map_err(
            |error| VolumeError::corrupt("orphan file", Place::FileBlock(self.nr, index as u32), error),
        )?;
        self.free.extend((0..orphan::slots(bytes.len())).map(|slot| ((index, slot), ())));
        for (slot, nr) in used {
            self.free.remove(&(index, slot));
            self.taken.insert(nr, (index, slot));
        }
        Ok(())
    }

    fn checksum(&self, volume: &Volume, block: DiskBlock) -> Option<(u32, DiskBlock)> {
        volume.sb.ro_compat().contains(RoCompat::METADATA_CSUM).then_some((self.seed, block))
    }

    fn set(&self, volume: &Volume, h: &mut Handle<'_>, at: (usize, usize), nr: InodeNr) -> Result<()> {
        let block = self.blocks[at.0];
        let buffer = volume.buffers.read(block)?;
        let checksum = self.checksum(volume, block);
        h.modify(&buffer, |bytes| {
            orphan::set_slot(bytes, at.1, nr);
            orphan::seal(bytes, checksum)
        })?
        .map_err(|error| VolumeError::corrupt("orphan file", Place::Block(block), error))
    }

    fn add(&mut self, volume: &Volume, h: &mut Handle<'_>, nr: InodeNr) -> Result<()> {
        let Some((at, ())) = self.free.pop_first() else {
            return Err(VolumeError::Limit("the orphan file is full"));
        };
        self.taken.insert(nr, at);
        self.set(volume, h, at, nr)
    }

    fn remove(&mut self, volume: &Volume, h: &mut Handle<'_>, nr: InodeNr) -> Result<()> {
        let Some(at) = self.taken.remove(&nr) else { return Ok(()) };
        self.free.insert(at, ());
        self.set(volume, h, at, InodeNr(0))
    }
}
