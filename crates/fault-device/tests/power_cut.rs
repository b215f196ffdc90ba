//! What a killed process leaves behind its volatile cache is legal.

use std::collections::BTreeSet;
use std::io::{BufRead, IoSlice};
use std::process::{Command, Stdio};
use std::sync::Arc;

use onggi_block_device::{BlockDevice, ByteRange, MemoryDevice, Write};
use onggi_fault_device::{PowerCut, Prng};
use onggi_file_device::{FileDevice, OpenOptions};

const SIZE: u64 = (256 << 10) - 512;
const SECTORS: u64 = SIZE / 512;

fn put(device: &impl BlockDevice, sector: u64, bytes: &[u8], fua: bool) {
    device.write(&[Write { offset: sector * 512, bufs: &[IoSlice::new(bytes)], fua }]).unwrap();
}

/// The values that each sector may have after a power cut now, the last being what a read gives.
struct Model(Vec<Vec<u8>>);

impl Model {
    fn change(&mut self, sector: u64, count: u64, value: u8, durable: bool) {
        for values in &mut self.0[sector as usize..(sector + count) as usize] {
            if durable {
                values.clear();
            }
            values.push(value);
        }
    }

    fn flush(&mut self) {
        for values in &mut self.0 {
            values.drain(..values.len() - 1);
        }
    }
}

#[test]
fn reads_see_all_and_a_kill_leaves_a_legal_subset() {
    let (mut lost, mut leaked) = (0, 0);
    for seed in 0..40 {
        let limit = if seed % 2 == 0 { u64::MAX } else { 64 << 10 };
        let inner = Arc::new(MemoryDevice::new(SIZE));
        let device = PowerCut::with_limit(Arc::clone(&inner), seed, limit);
        let mut prng = Prng::new(seed + 1000);
        let mut model = Model(vec![vec![0]; SECTORS as usize]);
        for step in 0..300u32 {
            let at = prng.below(SECTORS);
            let count = (1 + prng.below(40)).min(SECTORS - at);
            let value = (step % 255) as u8 + 1;
            let range = ByteRange { offset: at * 512, len: count * 512 };
            match prng.below(20) {
                0 => {
                    device.flush().unwrap();
                    model.flush();
                    assert_eq!(device.held_bytes(), 0);
                }
                1 => {
                    device.write_zeroes(range, true).unwrap();
                    model.change(at, count, 0, false);
                }
                2 => {
                    device.discard(&[range]).unwrap();
                    model.change(at, count, 0, false);
                }
                kind => {
                    put(&device, at, &vec![value; range.len as usize], kind == 3);
                    model.change(at, count, value, kind == 3);
                }
            }
            if step % 10 == 0 {
                let (mut seen, kept) = (vec![0; SIZE as usize], inner.to_bytes());
                device.read_at(0, &mut seen).unwrap();
                for (sector, values) in model.0.iter().enumerate() {
                    let (seen, kept) = (&seen[sector * 512..][..512], &kept[sector * 512..][..512]);
                    assert!(seen.iter().all(|b| b == values.last().unwrap()), "seed {seed} step {step}");
                    assert!(kept.iter().all(|&b| b == kept[0]) && values.contains(&kept[0]));
                    lost += usize::from(values.len() > 1 && kept[0] == values[0]);
                    leaked += usize::from(values.len() > 1 && kept[0] != values[0]);
                }
            }
        }
        device.flush().unwrap();
        let mut seen = vec![0; SIZE as usize];
        device.read_at(0, &mut seen).unwrap();
        assert!(seen == inner.to_bytes());
    }
    assert!(lost > 10_000 && leaked > 10_000, "{lost} sectors lost, {leaked} leaked");
}

#[test]
fn memory_is_bounded_and_long_zeroes_go_through() {
    let device = PowerCut::with_limit(MemoryDevice::new(256 << 20), 1, 1 << 20);
    for block in 0..4096u64 {
        device.write_at(block * 4096, &[1; 4096]).unwrap();
        assert!(device.held_bytes() <= 1 << 20);
    }
    device.write_zeroes(ByteRange { offset: 0, len: 128 << 20 }, true).unwrap();
    assert_eq!(device.held_bytes(), 0);
    let mut bytes = [1; 4096];
    device.read_at(4096, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4096]);
}

#[test]
fn a_seed_replays() {
    let run = |seed| {
        let device = PowerCut::new(MemoryDevice::new(SIZE), seed);
        for sector in 0..400 {
            put(&device, sector, &[7; 1024], false);
        }
        device.inner().to_bytes()
    };
    assert!(run(5) == run(5));
    assert!(run(5) != run(6));
}

/// The child: round after round writes its number to every eighth sector, flushes, reports.
fn write_rounds(path: &str, seed: u64) -> ! {
    let device = PowerCut::new(FileDevice::open(path, OpenOptions::default()).unwrap(), seed);
    let mut round = 0u64;
    loop {
        round += 1;
        let mut sector = [0; 512];
        sector.chunks_mut(8).for_each(|word| word.copy_from_slice(&round.to_le_bytes()));
        for at in (0..SECTORS).step_by(8) {
            put(&device, at, &sector, false);
        }
        device.flush().unwrap();
        println!("ROUND {round}");
    }
}

#[test]
fn a_killed_process_keeps_what_it_flushed() {
    if let Ok(path) = std::env::var("ONGGI_POWER_CUT_CHILD") {
        write_rounds(&path, std::env::var("ONGGI_POWER_CUT_SEED").unwrap().parse().unwrap());
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let mut values = BTreeSet::new();
    for seed in 0..8u64 {
        let _ = std::fs::remove_file(&path);
        drop(FileDevice::create(&path, SIZE).unwrap());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_killed_process_keeps_what_it_flushed", "--nocapture"])
            .env("ONGGI_POWER_CUT_CHILD", &path)
            .env("ONGGI_POWER_CUT_SEED", seed.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let round = |line: String| line.strip_prefix("ROUND ").and_then(|number| number.parse::<u64>().ok());
        let mut acknowledged = lines.by_ref().filter_map(round).nth(4 + seed as usize).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        acknowledged = lines.filter_map(round).last().unwrap_or(acknowledged);
        let device =
            FileDevice::open(&path, OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
        let mut image = vec![0; SIZE as usize];
        device.read_at(0, &mut image).unwrap();
        let mut mixed = BTreeSet::new();
        for at in (0..SECTORS as usize).step_by(8) {
            let words: BTreeSet<_> = image[at * 512..][..512].chunks(8).collect();
            let value = u64::from_le_bytes(words.first().unwrap()[..].try_into().unwrap());
            assert_eq!(words.len(), 1, "a sector is never torn");
            assert!((acknowledged..=acknowledged + 1).contains(&value), "{value} after {acknowledged}");
            mixed.insert(value);
        }
        values.insert(mixed.len());
    }
    println!("rounds mixed in one image: {values:?}");
}
