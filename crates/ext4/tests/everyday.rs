//! What everybody does with a file system, checked by e2fsck afterwards.

mod support;

use onggi_vfs::{Errno, FallocateMode, FileSystem, Node, RenameMode, SetAttr, Whence, XattrMode};
use support::{CX, assert_e2fsck_clean, mount, options, volume};

fn read_all(fs: &dyn FileSystem, ino: onggi_vfs::Ino) -> Vec<u8> {
    let mut bytes = vec![0; fs.getattr(ino).unwrap().size as usize];
    let read = fs.read(&CX, ino, 0, &mut bytes).unwrap();
    assert_eq!(read, bytes.len());
    bytes
}

#[test]
fn an_empty_volume_mounts_and_stays_clean() {
    let device = volume(64 << 20, |_| {});
    let fs = mount(&device, options());
    assert!(fs.readdir(fs.root(), 0, 100).unwrap().iter().any(|entry| entry.name == b"lost+found"));
    fs.unmount().unwrap();
    assert_e2fsck_clean(&device);
}

#[test]
fn files_survive_an_unmount() {
    let device = volume(64 << 20, |_| {});
    let fs = mount(&device, options());
    let content: Vec<u8> = (0..3_000_000u32).map(|index| ((index * 7) >> 3) as u8).collect();
    let file = fs.create(&CX, fs.root(), b"file", Node::Regular, 0o640).unwrap();
    for (index, piece) in content.chunks(100_001).enumerate() {
        fs.write(&CX, file.ino, index as u64 * 100_001, piece).unwrap();
    }
    let dir = fs.create(&CX, fs.root(), b"dir", Node::Directory, 0o755).unwrap();
    let link = fs.create(&CX, dir.ino, b"link", Node::Symlink(b"../file"), 0).unwrap();
    let long = [b'x'; 500];
    let far = fs.create(&CX, dir.ino, b"far", Node::Symlink(&long), 0).unwrap();
    fs.setxattr(&CX, file.ino, b"user.colour", b"green", XattrMode::Create).unwrap();
    fs.link(&CX, file.ino, dir.ino, b"other name").unwrap();
    fs.unmount().unwrap();
    assert_e2fsck_clean(&device);

    let fs = mount(&device, options());
    assert_eq!(read_all(&*fs, file.ino), content);
    assert_eq!(fs.readlink(link.ino).unwrap(), b"../file");
    assert_eq!(fs.readlink(far.ino).unwrap(), long);
    assert_eq!(fs.getxattr(file.ino, b"user.colour").unwrap(), b"green");
    assert_eq!(fs.lookup(dir.ino, b"other name").unwrap().nlink, 2);
    fs.rename(&CX, dir.ino, b"other name", fs.root(), b"file", RenameMode::Replace).unwrap();
    fs.unlink(&CX, dir.ino, b"link").unwrap();
    fs.unlink(&CX, dir.ino, b"far").unwrap();
    fs.rename(&CX, dir.ino, b"other name", fs.root(), b"moved", RenameMode::Replace).unwrap();
    fs.rmdir(&CX, fs.root(), b"dir").unwrap();
    fs.unlink(&CX, fs.root(), b"file").unwrap();
    fs.unlink(&CX, fs.root(), b"moved").unwrap();
    assert_eq!(fs.lookup(fs.root(), b"moved").unwrap_err().errno(), Errno::NOENT);
    let before = fs.statfs().unwrap();
    fs.unmount().unwrap();
    assert_e2fsck_clean(&device);
    let fs = mount(&device, options());
    assert_eq!(fs.statfs().unwrap(), before);
}

#[test]
fn holes_zeroes_and_allocation_ahead() {
    for block_size in [1024, 4096] {
        let device = volume(64 << 20, |options| options.block_size = Some(block_size));
        let fs = mount(&device, options());
        let ino = fs.create(&CX, fs.root(), b"f", Node::Regular, 0o600).unwrap().ino;
        fs.write(&CX, ino, 1 << 20, &[1; 100_000]).unwrap();
        fs.fallocate(&CX, ino, (1 << 20) + 5000, 50_000, FallocateMode::PunchHole).unwrap();
        fs.fallocate(&CX, ino, 0, 20_000, FallocateMode::Allocate { keep_size: true }).unwrap();
        fs.write(&CX, ino, 8192, &[2; 5000]).unwrap();
        fs.fsync(ino, false).unwrap();
        fs.fallocate(&CX, ino, 9000, 1000, FallocateMode::ZeroRange { keep_size: false }).unwrap();
        let mut expected = vec![0; (1 << 20) + 100_000];
        expected[1 << 20..].fill(1);
        expected[(1 << 20) + 5000..(1 << 20) + 55_000].fill(0);
        expected[8192..13_192].fill(2);
        expected[9000..10_000].fill(0);
        assert!(read_all(&*fs, ino) == expected);
        assert_eq!(fs.seek(ino, 20_000, Whence::Data).unwrap(), 1 << 20);
        let change = SetAttr { size: Some(8193), ..SetAttr::default() };
        fs.setattr(&CX, ino, &change).unwrap();
        let change = SetAttr { size: Some(70_000), ..SetAttr::default() };
        fs.setattr(&CX, ino, &change).unwrap();
        expected.truncate(8193);
        expected.resize(70_000, 0);
        assert!(read_all(&*fs, ino) == expected);
        fs.unmount().unwrap();
        assert_e2fsck_clean(&device);
        let fs = mount(&device, options());
        assert!(read_all(&*fs, ino) == expected);
    }
}

#[test]
fn a_file_without_a_name_lives_while_it_is_held() {
    let device = volume(64 << 20, |_| {});
    let fs = mount(&device, options());
    let before = fs.statfs().unwrap();
    let file = fs.create(&CX, fs.root(), b"f", Node::Regular, 0o600).unwrap();
    fs.retain(file.ino, file.generation).unwrap();
    fs.write(&CX, file.ino, 0, b"still here").unwrap();
    fs.unlink(&CX, fs.root(), b"f").unwrap();
    assert_eq!(read_all(&*fs, file.ino), b"still here");
    fs.fsync(file.ino, false).unwrap();
    let nameless = fs.tmpfile(&CX, fs.root(), 0o600).unwrap();
    fs.write(&CX, nameless.ino, 0, b"named late").unwrap();
    fs.link(&CX, nameless.ino, fs.root(), b"late").unwrap();
    fs.release(nameless.ino, 1);
    fs.release(file.ino, 1);
    assert_eq!(fs.getattr(file.ino).unwrap_err().errno(), Errno::NOENT);
    fs.unlink(&CX, fs.root(), b"late").unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.statfs().unwrap(), before);
    fs.unmount().unwrap();
    assert_e2fsck_clean(&device);
}

#[test]
fn many_names_in_one_directory() {
    let device = volume(128 << 20, |_| {});
    let fs = mount(&device, options());
    let dir = fs.create(&CX, fs.root(), b"d", Node::Directory, 0o755).unwrap().ino;
    for index in 0..5000 {
        fs.create(&CX, dir, format!("name {index}").as_bytes(), Node::Regular, 0o644).unwrap();
    }
    let (mut cookie, mut seen) = (0, 0);
    loop {
        let entries = fs.readdir(dir, cookie, 300).unwrap();
        let Some(last) = entries.last() else { break };
        cookie = last.next;
        seen += entries.len();
    }
    assert_eq!(seen, 5002);
    for index in (0..5000).step_by(2) {
        fs.unlink(&CX, dir, format!("name {index}").as_bytes()).unwrap();
    }
    fs.unmount().unwrap();
    assert_e2fsck_clean(&device);
}

#[test]
fn an_access_list_and_the_permission_bits_are_one() {
    let device = volume(16 << 20, |_| {});
    let fs = mount(&device, options());
    let file = fs.create(&CX, fs.root(), b"file", Node::Regular, 0o600).unwrap().ino;
    // rw- for the owner, rwx for 1234, r-- for the group, at most r-x, nothing for others.
    let list = |owner: u8, mask: u8, others: u8| {
        let entries = [(1, owner, u32::MAX), (2, 7, 1234), (4, 4, u32::MAX), (16, mask, u32::MAX)];
        let mut bytes = vec![2, 0, 0, 0];
        for (tag, permissions, id) in entries.into_iter().chain([(32, others, u32::MAX)]) {
            bytes.extend([tag, 0, permissions, 0]);
            bytes.extend(id.to_le_bytes());
        }
        bytes
    };
    let name = b"system.posix_acl_access";
    fs.setxattr(&CX, file, name, &list(6, 5, 0), XattrMode::Set).unwrap();
    assert_eq!(fs.getattr(file).unwrap().perm, 0o650);
    let changes = SetAttr { perm: Some(0o4761), ..SetAttr::default() };
    assert_eq!(fs.setattr(&CX, file, &changes).unwrap().perm, 0o4761);
    assert_eq!(fs.getxattr(file, name).unwrap(), list(7, 6, 1));
    fs.unmount().unwrap();
    assert_e2fsck_clean(&device);
    let fs = mount(&device, options());
    assert_eq!((fs.getattr(file).unwrap().perm, fs.getxattr(file, name).unwrap()), (0o4761, list(7, 6, 1)));
    fs.removexattr(&CX, file, name).unwrap();
    assert_eq!(fs.getattr(file).unwrap().perm, 0o4761);
}
