//! What a regular file holds: the blocks that were written, the rest is zero.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Written blocks by number. A block that is absent is a hole and reads as zeroes; bytes past the end
/// of the file are kept zero.
#[derive(Clone, Debug)]
pub(crate) struct Content {
    block_size: u64,
    blocks: BTreeMap<u64, Arc<[u8]>>,
}

impl Content {
    pub(crate) fn new(block_size: u32) -> Self {
        Self { block_size: u64::from(block_size), blocks: BTreeMap::new() }
    }

    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) {
        self.pieces(offset, buf.len(), |block, at, range| match self.blocks.get(&block) {
            Some(bytes) => buf[range.clone()].copy_from_slice(&bytes[at..at + range.len()]),
            None => buf[range].fill(0),
        });
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        let mut parts = Vec::new();
        self.pieces(offset, data.len(), |block, at, range| parts.push((block, at, range)));
        for (block, at, range) in parts {
            let size = self.block_size as usize;
            let bytes = self.blocks.entry(block).or_insert_with(|| vec![0; size].into());
            Arc::make_mut(bytes)[at..at + range.len()].copy_from_slice(&data[range]);
        }
    }

    /// Makes `[start, end)` a hole: whole blocks go, the rest of a written block is zeroed.
    pub(crate) fn clear(&mut self, start: u64, end: u64) {
        let touched: Vec<u64> = match end.checked_sub(1) {
            Some(last) if start < end => {
                self.blocks.range(start / self.block_size..=last / self.block_size).map(|(&b, _)| b).collect()
            }
            _ => return,
        };
        for block in touched {
            let base = block * self.block_size;
            let from = start.saturating_sub(base) as usize;
            let to = (end - base).min(self.block_size) as usize;
            if from == 0 && to == self.block_size as usize {
                self.blocks.remove(&block);
            } else if let Some(bytes) = self.blocks.get_mut(&block) {
                Arc::make_mut(bytes)[from..to].fill(0);
            }
        }
    }

    /// Forgets everything from `size` on.
    pub(crate) fn truncate(&mut self, size: u64) {
        self.blocks.split_off(&size.div_ceil(self.block_size));
        let within = (size % self.block_size) as usize;
        if within != 0
            && let Some(bytes) = self.blocks.get_mut(&(size / self.block_size))
        {
            Arc::make_mut(bytes)[within..].fill(0);
        }
    }

    /// The first written byte at or after `offset`.
    pub(crate) fn next_data(&self, offset: u64) -> Option<u64> {
        let (&block, _) = self.blocks.range(offset / self.block_size..).next()?;
        Some(offset.max(block * self.block_size))
    }

    /// The first byte of a hole at or after `offset`.
    pub(crate) fn next_hole(&self, offset: u64) -> u64 {
        let mut block = offset / self.block_size;
        if !self.blocks.contains_key(&block) {
            return offset;
        }
        while self.blocks.contains_key(&block) {
            block += 1;
        }
        block * self.block_size
    }

    pub(crate) fn block_count(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// Cuts a range at block borders: block, byte in the block, range in the buffer.
    fn pieces(&self, offset: u64, len: usize, mut each: impl FnMut(u64, usize, std::ops::Range<usize>)) {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let within = (at % self.block_size) as usize;
            let take = (self.block_size as usize - within).min(len - done);
            each(at / self.block_size, within, done..done + take);
            done += take;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_read_as_zero_and_writes_stay() {
        let mut content = Content::new(16);
        content.write(10, &[7; 30]);
        let mut buf = [1; 60];
        content.read(0, &mut buf);
        assert!(buf[..10].iter().chain(&buf[40..]).all(|&b| b == 0));
        assert!(buf[10..40].iter().all(|&b| b == 7));
        assert_eq!(content.next_data(0), Some(0));
        assert_eq!(content.next_hole(0), 48);
        content.clear(12, 33);
        content.read(0, &mut buf);
        assert!(buf[10..12].iter().chain(&buf[33..40]).all(|&b| b == 7));
        assert!(buf[12..33].iter().all(|&b| b == 0));
        assert_eq!(content.next_hole(0), 16);
        assert_eq!(content.next_data(16), Some(32));
    }

    #[test]
    fn truncation_zeroes_the_tail() {
        let mut content = Content::new(16);
        content.write(0, &[7; 40]);
        content.truncate(20);
        let mut buf = [1; 40];
        content.read(0, &mut buf);
        assert!(buf[20..].iter().all(|&b| b == 0));
        assert_eq!(content.next_data(32), None);
        content.truncate(0);
        assert_eq!(content.block_count(), 0);
    }
}
