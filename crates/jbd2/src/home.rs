//! Writing block images to the device, adjacent ones in one request.

use std::io::IoSlice;

use onggi_block_device::{BlockDevice, DeviceError, Operation, Write};
use onggi_disk_format::DiskBlock;

/// Blocks in one request.
const RUN_BLOCKS: usize = 256;

/// Writes blocks, given in the order in which adjacent ones are to be merged, as one batch.
pub(crate) fn write_blocks(
    device: &dyn BlockDevice,
    block_size: u32,
    blocks: &[(DiskBlock, &[u8])],
) -> Result<(), DeviceError> {
    if blocks.is_empty() {
        return Ok(());
    }
    let runs =
        blocks.chunk_by(|a, b| a.0.0.checked_add(1) == Some(b.0.0)).flat_map(|run| run.chunks(RUN_BLOCKS));
    let requests = runs
        .map(|run| {
            let offset = run[0].0.byte_offset(block_size).ok_or(DeviceError::OutOfRange {
                operation: Operation::Write,
                offset: u64::MAX,
                len: u64::from(block_size),
                size: device.attributes().size,
            })?;
            Ok((offset, run.iter().map(|(_, bytes)| IoSlice::new(bytes)).collect()))
        })
        .collect::<Result<Vec<(u64, Vec<IoSlice<'_>>)>, DeviceError>>()?;
    let batch: Vec<Write<'_>> =
        requests.iter().map(|(offset, bufs)| Write { offset: *offset, bufs, fua: false }).collect();
    device.write(&batch)
}
