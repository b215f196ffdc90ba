//! Compares the ways to the kernel on this machine: `measure FOLDER` makes a 256 MiB image there and
//! prints microseconds per call for single requests and for batches.

use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use onggi_block_device::{AlignedBuf, BlockDevice, Read, Write};
use onggi_file_device::{Backend, Direct, FileDevice, OpenOptions};

const SIZE: u64 = 256 << 20;
const BLOCK: usize = 4096;
const TIME: Duration = Duration::from_millis(700);

/// Mean microseconds per call of `call`, which gets a counter.
fn time(mut call: impl FnMut(u64)) -> f64 {
    let start = Instant::now();
    let mut calls = 0;
    while start.elapsed() < TIME {
        call(calls);
        calls += 1;
    }
    start.elapsed().as_secs_f64() * 1e6 / calls as f64
}

/// Block `n` of a walk that is anything but sequential.
fn place(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (SIZE / BLOCK as u64) * BLOCK as u64
}

fn read(device: &FileDevice, buf: &mut AlignedBuf, n: u64) {
    let mut slices: Vec<_> = buf.chunks_mut(BLOCK).map(|block| [IoSliceMut::new(block)]).collect();
    let count = slices.len() as u64;
    let mut batch: Vec<_> = slices
        .iter_mut()
        .enumerate()
        .map(|(i, bufs)| Read { offset: place(n * count + i as u64), bufs: &mut bufs[..] })
        .collect();
    device.read(&mut batch).unwrap();
}

fn write(device: &FileDevice, buf: &AlignedBuf, n: u64, fua: bool) {
    let slices: Vec<_> = buf.chunks(BLOCK).map(|block| [IoSlice::new(block)]).collect();
    let count = slices.len() as u64;
    let batch: Vec<_> = slices
        .iter()
        .enumerate()
        .map(|(i, bufs)| Write { offset: place(n * count + i as u64), bufs, fua })
        .collect();
    device.write(&batch).unwrap();
}

fn main() {
    let folder = std::env::args().nth(1).expect("usage: measure FOLDER");
    let path = std::path::Path::new(&folder).join("onggi-measure.img");
    println!(
        "{:<22} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "µs per call", "read 1", "read 32", "write 1", "write 32", "fua 1"
    );
    for direct in [Direct::Auto, Direct::Never] {
        for backend in [Backend::Uring, Backend::Threads] {
            let options = OpenOptions { direct, backend, ..OpenOptions::default() };
            let device = FileDevice::create_with(&path, SIZE, options).unwrap();
            let fill = AlignedBuf::zeroed(1 << 20);
            (0..SIZE >> 20).for_each(|mib| device.write_at(mib << 20, &fill).unwrap());
            device.flush().unwrap();
            let (mut one, mut many) = (AlignedBuf::zeroed(BLOCK), AlignedBuf::zeroed(32 * BLOCK));
            let columns = [
                time(|n| read(&device, &mut one, n)),
                time(|n| read(&device, &mut many, n)),
                time(|n| write(&device, &one, n, false)),
                time(|n| write(&device, &many, n, false)),
                time(|n| write(&device, &one, n, true)),
            ];
            let way = format!("{backend:?} {}", if device.is_direct() { "direct" } else { "buffered" });
            println!(
                "{way:<22} {:>8.1} {:>8.1} {:>8.1} {:>8.1} {:>8.1}",
                columns[0], columns[1], columns[2], columns[3], columns[4]
            );
        }
    }
    std::fs::remove_file(path).unwrap();
}
