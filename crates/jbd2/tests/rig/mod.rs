//! A toy volume: a few blocks, a journal in two pieces among them.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its own part")]

pub mod model;

use std::sync::Arc;

use onggi_block_device::{BlockDevice, MemoryDevice};
use onggi_disk_format::DiskBlock;
use onggi_disk_format::jbd2::{Incompat, JournalSuperblock};
use onggi_jbd2::{Buffers, CommitTime, Journal, JournalMap, Recovery, RecoveryError, Settings, recover};

/// What the engine would put into a transaction: here the blocks it freed.
pub type Payload = Vec<DiskBlock>;

pub const NOW: CommitTime = CommitTime { sec: 1_700_000_000, nsec: 5 };

#[derive(Clone, Copy, Debug)]
pub struct Rig {
    pub block_size: u32,
    /// Journal blocks, the superblock included.
    pub journal: u32,
    pub checksum_v3: bool,
    pub sixty_four_bit: bool,
}

impl Default for Rig {
    fn default() -> Self {
        Self { block_size: 1024, journal: 65, checksum_v3: true, sixty_four_bit: true }
    }
}

impl Rig {
    /// Blocks before the journal's pieces, between them and behind them, for everything else.
    pub const GAP: u64 = 64;

    pub fn map(&self) -> JournalMap {
        let (first, second) = self.pieces();
        JournalMap::new(vec![second, first])
    }

    fn pieces(&self) -> ((DiskBlock, u32), (DiskBlock, u32)) {
        let (small, large) = (self.journal / 3, self.journal - self.journal / 3);
        let first = (DiskBlock(Self::GAP), small);
        (first, (DiskBlock(2 * Self::GAP + u64::from(small)), large))
    }

    pub fn volume_blocks(&self) -> u64 {
        3 * Self::GAP + u64::from(self.journal)
    }

    pub fn settings(&self) -> Settings {
        Settings {
            checksum_v3: self.checksum_v3,
            sixty_four_bit: self.sixty_four_bit,
            volume_blocks: self.volume_blocks(),
        }
    }

    /// A volume of zeroes with an empty journal.
    pub fn device(&self) -> MemoryDevice {
        let device = MemoryDevice::new(self.volume_blocks() * u64::from(self.block_size));
        let superblock =
            JournalSuperblock::new(self.block_size, self.journal, Incompat::default(), [3; 16]).unwrap();
        self.put_superblock(&device, &superblock);
        device
    }

    pub fn put_superblock(&self, device: &dyn BlockDevice, superblock: &JournalSuperblock) {
        device.write_at(self.byte(self.map().locate(0).unwrap()), &superblock.encode()).unwrap();
    }

    pub fn superblock(&self, device: &dyn BlockDevice) -> JournalSuperblock {
        JournalSuperblock::parse(&self.block(device, self.map().locate(0).unwrap())).unwrap()
    }

    pub fn byte(&self, nr: DiskBlock) -> u64 {
        nr.0 * u64::from(self.block_size)
    }

    pub fn block(&self, device: &dyn BlockDevice, nr: DiskBlock) -> Vec<u8> {
        let mut bytes = vec![0; self.block_size as usize];
        device.read_at(self.byte(nr), &mut bytes).unwrap();
        bytes
    }

    pub fn buffers(&self, device: Arc<dyn BlockDevice>) -> Arc<Buffers> {
        Buffers::new(device, self.block_size, 1 << 20)
    }

    pub fn open(&self, device: Arc<dyn BlockDevice>) -> Journal<Payload> {
        Journal::open(self.buffers(device), self.map(), self.settings()).unwrap()
    }

    pub fn recover(&self, device: &dyn BlockDevice) -> Result<Recovery, RecoveryError> {
        recover(device, self.block_size, &self.map(), self.volume_blocks())
    }
}

/// Commits the running transaction, if anything changed.
pub fn commit(journal: &Journal<Payload>) {
    if let Some(tid) = journal.running() {
        while let Some(locked) = journal.lock(tid).unwrap() {
            locked.write(NOW).unwrap();
        }
    }
}

/// One transaction that fills these blocks with these bytes.
pub fn fill(journal: &Journal<Payload>, blocks: &[(u64, u8)]) {
    let mut handle = journal.start(blocks.len() as u32).unwrap();
    for &(nr, byte) in blocks {
        let buffer = journal.buffers().read(DiskBlock(nr)).unwrap();
        handle.modify(&buffer, |bytes| bytes.fill(byte)).unwrap();
    }
    drop(handle);
    commit(journal);
}
