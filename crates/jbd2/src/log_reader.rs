//! Reading the log in long strides.

use onggi_block_device::{AlignedBuf, BlockDevice};

use crate::error::JournalError;
use crate::map::JournalMap;

/// Bytes read at a time.
const STRIDE: u32 = 1 << 20;

/// A window that slides over the journal's blocks.
pub(crate) struct LogReader<'a> {
    device: &'a dyn BlockDevice,
    map: &'a JournalMap,
    block_size: u32,
    /// The block after the log's last.
    end: u32,
    window: AlignedBuf,
    /// First journal block in the window, and how many are valid.
    start: u32,
    count: u32,
}

impl<'a> LogReader<'a> {
    pub(crate) fn new(device: &'a dyn BlockDevice, map: &'a JournalMap, block_size: u32, end: u32) -> Self {
        let blocks = (STRIDE / block_size).max(1);
        let window = AlignedBuf::zeroed(blocks as usize * block_size as usize);
        Self { device, map, block_size, end, window, start: 0, count: 0 }
    }

    /// The bytes of a journal block.
    pub(crate) fn block(&mut self, nr: u32) -> Result<&[u8], JournalError> {
        let size = self.block_size as usize;
        if nr < self.start || nr - self.start >= self.count {
            self.slide(nr)?;
        }
        let at = (nr - self.start) as usize * size;
        Ok(&self.window[at..at + size])
    }

    /// Fills the window from `nr` on, as far as the journal lies in one piece.
    fn slide(&mut self, nr: u32) -> Result<(), JournalError> {
        let short = || JournalError::ShortMap { blocks: self.map.len(), maxlen: nr };
        let home = self.map.locate(nr).ok_or_else(short)?;
        let offset = home.byte_offset(self.block_size).ok_or_else(short)?;
        let most = (self.window.len() / self.block_size as usize) as u32;
        let limit = most.min(self.end.saturating_sub(nr)).max(1);
        let adjacent = |ahead: &u32| {
            let place = nr.checked_add(*ahead).and_then(|nr| self.map.locate(nr));
            place.is_some_and(|place| place.0.checked_sub(u64::from(*ahead)) == Some(home.0))
        };
        let count = 1 + (1..limit).take_while(adjacent).count() as u32;
        let bytes = &mut self.window[..count as usize * self.block_size as usize];
        self.count = 0;
        self.device
            .read_at(offset, bytes)
            .map_err(|source| JournalError::Device { during: "reading the log", source })?;
        self.start = nr;
        self.count = count;
        Ok(())
    }
}
