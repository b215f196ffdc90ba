//! Rough speed of the engine without a mount: `cargo run --release -p onggi-ext4 --example speed IMAGE`.

use std::sync::Arc;
use std::time::Instant;

use onggi_block_device::BlockDevice;
use onggi_ext4::{Ext4, MountOptions};
use onggi_file_device::{FileDevice, OpenOptions};
use onggi_vfs::{Context, FileSystem, Node, Timestamp};

fn main() {
    let path = std::env::args().nth(1).expect("an image to overwrite");
    let device = FileDevice::create_with(&path, 4 << 30, OpenOptions::default()).expect("create");
    let options = onggi_ext4_mkfs::Options::new([1; 16], [2; 16], 1_700_000_000);
    onggi_ext4_mkfs::format(&device, &options).expect("mkfs");
    let now = Timestamp { sec: 1_700_000_000, nsec: 0 };
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let fs = Ext4::mount(device, MountOptions::default(), now).expect("mount");
    let cx = Context { uid: 0, gid: 0, now };
    let time = |what: &str, count: f64, unit: &str, run: &mut dyn FnMut()| {
        let start = Instant::now();
        run();
        let seconds = start.elapsed().as_secs_f64();
        println!("{what:<32} {seconds:8.3} s {:12.0} {unit}/s", count / seconds);
    };
    let dir = fs.create(&cx, fs.root(), b"d", Node::Directory, 0o755).unwrap().ino;
    let name = |index: u32| format!("file{index:06}").into_bytes();
    time("create", 20_000.0, "files", &mut || {
        for index in 0..20_000 {
            fs.create(&cx, dir, &name(index), Node::Regular, 0o644).unwrap();
        }
    });
    time("write 4 KiB each", 20_000.0, "files", &mut || {
        for index in 0..20_000 {
            let ino = fs.lookup(dir, &name(index)).unwrap().ino;
            fs.write(&cx, ino, 0, &[7; 4096]).unwrap();
        }
    });
    time("sync", 1.0, "syncs", &mut || fs.sync().unwrap());
    time("lookup", 20_000.0, "names", &mut || {
        for index in 0..20_000 {
            fs.lookup(dir, &name(index)).unwrap();
        }
    });
    time("unlink", 20_000.0, "files", &mut || {
        for index in 0..20_000 {
            fs.unlink(&cx, dir, &name(index)).unwrap();
        }
    });
    time("sync", 1.0, "syncs", &mut || fs.sync().unwrap());
    let big = fs.create(&cx, fs.root(), b"big", Node::Regular, 0o644).unwrap().ino;
    let data = vec![3; 1 << 20];
    time("sequential write and fsync", 1024.0, "MiB", &mut || {
        for index in 0..1024 {
            fs.write(&cx, big, index << 20, &data).unwrap();
        }
        fs.fsync(big, false).unwrap();
    });
    time("overwrite 4 KiB in the cache", 500_000.0, "writes", &mut || {
        for _ in 0..500_000 {
            fs.write(&cx, big, 4096, &data[..4096]).unwrap();
        }
    });
    let mut buf = vec![0; 1 << 20];
    time("sequential read", 1024.0, "MiB", &mut || {
        for index in 0..1024 {
            fs.read(&cx, big, index << 20, &mut buf).unwrap();
        }
    });
    time("append 4 KiB and fsync", 1000.0, "fsyncs", &mut || {
        for index in 0..1000u64 {
            fs.write(&cx, big, (1 << 30) + index * 4096, &data[..4096]).unwrap();
            fs.fsync(big, false).unwrap();
        }
    });
    time("unmount", 1.0, "unmounts", &mut || fs.unmount().unwrap());
}
