//! How long a check of an image in memory takes: `speed IMAGE [TIMES]`.

use std::time::Instant;

use onggi_block_device::MemoryDevice;
use onggi_ext4_check::{Mode, check};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().expect("an image");
    let times: u32 = arguments.next().map_or(20, |text| text.parse().expect("a number"));
    let device = MemoryDevice::from_bytes(&std::fs::read(path).expect("readable"));
    let start = Instant::now();
    let mut last = None;
    for _ in 0..times {
        last = Some(check(&device, Mode::ReadOnly, &|_| ()).expect("a volume"));
    }
    let each = start.elapsed() / times;
    let report = last.expect("at least one");
    println!("{each:?} each; {} problems; {:?}", report.problems.len(), report.stats);
}
