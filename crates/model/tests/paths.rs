//! Path walking, on the model.

use onggi_model::ModelFs;
use onggi_vfs::path::{mkdir_all, read_all, resolve, resolve_parent};
use onggi_vfs::{Attr, Context, Errno, FileKind, FileSystem, Node, Timestamp};

const CX: Context = Context { uid: 0, gid: 0, now: Timestamp { sec: 1, nsec: 2 } };

fn make(fs: &dyn FileSystem, path: &str, node: Node<'_>) -> Attr {
    let (dir, name) = resolve_parent(fs, path.as_bytes()).unwrap();
    fs.create(&CX, dir.ino, &name, node, 0o755).unwrap()
}

fn errno<T>(result: onggi_vfs::Result<T>) -> Errno {
    result.map(drop).unwrap_err().errno()
}

/// /a/b/file, and links to and around it.
fn volume() -> ModelFs {
    let fs = ModelFs::new(4096);
    mkdir_all(&fs, &CX, b"/a/b", 0o755).unwrap();
    make(&fs, "/a/b/file", Node::Regular);
    for (path, target) in [
        ("/to-a", "a"),
        ("/a/up", ".."),
        ("/a/b/absolute", "/a/b/file"),
        ("/a/b/relative", "../b/./file"),
        ("/dangling", "nowhere/at/all"),
        ("/loop", "loop"),
        ("/file-slash", "a/b/file/"),
    ] {
        make(&fs, path, Node::Symlink(target.as_bytes()));
    }
    fs
}

#[test]
fn links_lead_where_they_should() {
    let fs = volume();
    let file = resolve(&fs, b"/a/b/file", true).unwrap().ino;
    for path in [
        "a/b/file",
        "//a///b/./file",
        "/to-a/b/file",
        "/a/up/a/b/file",
        "/a/b/absolute",
        "/a/b/relative",
        "/../../a/b/file",
        "/to-a/up/to-a/b/relative",
    ] {
        assert_eq!(resolve(&fs, path.as_bytes(), true).unwrap().ino, file, "{path}");
    }
    assert_eq!(resolve(&fs, b"/", true).unwrap().ino, fs.root());
    assert_eq!(resolve(&fs, b".", false).unwrap().ino, fs.root());
}

#[test]
fn the_last_link_is_followed_where_asked() {
    let fs = volume();
    assert_eq!(resolve(&fs, b"/to-a", false).unwrap().kind, FileKind::Symlink);
    assert_eq!(resolve(&fs, b"/to-a", true).unwrap().kind, FileKind::Directory);
    assert_eq!(resolve(&fs, b"/to-a/", false).unwrap().kind, FileKind::Directory);
    assert_eq!(resolve(&fs, b"/dangling", false).unwrap().kind, FileKind::Symlink);
    assert_eq!(errno(resolve(&fs, b"/dangling", true)), Errno::NOENT);
}

#[test]
fn errors_are_those_of_linux() {
    let fs = volume();
    let long = [b"/a/".as_slice(), &[b'n'; 256]].concat();
    for (path, expected) in [
        (b"".as_slice(), Errno::NOENT),
        (b"/none", Errno::NOENT),
        (b"/none/deeper", Errno::NOENT),
        (b"/a/b/file/", Errno::NOTDIR),
        (b"/a/b/file/.", Errno::NOTDIR),
        (b"/a/b/file/deeper", Errno::NOTDIR),
        (b"/a/b/file/..", Errno::NOTDIR),
        (b"/file-slash", Errno::NOTDIR),
        (b"/loop", Errno::LOOP),
        (b"/loop/x", Errno::LOOP),
        (&long, Errno::NAMETOOLONG),
    ] {
        assert_eq!(errno(resolve(&fs, path, true)), expected, "{}", path.escape_ascii());
    }
    assert_eq!(resolve(&fs, b"/loop", false).unwrap().kind, FileKind::Symlink);
}

#[test]
fn forty_links_are_followed_and_no_more() {
    let fs = volume();
    make(&fs, "/l0", Node::Symlink(b"a"));
    for n in 1..=40 {
        make(&fs, &format!("/l{n}"), Node::Symlink(format!("l{}", n - 1).as_bytes()));
    }
    assert_eq!(resolve(&fs, b"/l39", true).unwrap().kind, FileKind::Directory);
    assert_eq!(errno(resolve(&fs, b"/l40", true)), Errno::LOOP);
}

#[test]
fn parents() {
    let fs = volume();
    let b = resolve(&fs, b"/a/b", true).unwrap().ino;
    for path in ["/a/b/new", "/to-a/b/new", "a/b/new/", "/a/b/new///"] {
        let (dir, name) = resolve_parent(&fs, path.as_bytes()).unwrap();
        assert_eq!((dir.ino, name.as_slice()), (b, b"new".as_slice()), "{path}");
    }
    assert_eq!(resolve_parent(&fs, b"top").unwrap().0.ino, fs.root());
    assert_eq!(resolve_parent(&fs, b"/to-a").unwrap().1, b"to-a");
    for (path, expected) in [
        (b"/".as_slice(), Errno::INVAL),
        (b"/a/.", Errno::INVAL),
        (b"/a/..", Errno::INVAL),
        (b"", Errno::NOENT),
        (b"/a/b/file/new", Errno::NOTDIR),
        (b"/none/new", Errno::NOENT),
    ] {
        assert_eq!(errno(resolve_parent(&fs, path)), expected, "{}", path.escape_ascii());
    }
}

#[test]
fn directories_are_made_on_the_way() {
    let fs = volume();
    let deep = mkdir_all(&fs, &CX, b"/to-a/x/y/../z", 0o700).unwrap();
    assert_eq!(resolve(&fs, b"/a/x/z", true).unwrap().ino, deep.ino);
    assert_eq!(mkdir_all(&fs, &CX, b"/a/x/z/", 0o700).unwrap().ino, deep.ino);
    assert_eq!(mkdir_all(&fs, &CX, b"/", 0o700).unwrap().ino, fs.root());
    assert_eq!(errno(mkdir_all(&fs, &CX, b"/a/b/file", 0o700)), Errno::NOTDIR);
    assert_eq!(errno(mkdir_all(&fs, &CX, b"/a/b/file/x", 0o700)), Errno::NOTDIR);
    assert_eq!(errno(mkdir_all(&fs, &CX, b"/dangling", 0o700)), Errno::NOENT);
}

#[test]
fn a_file_is_read_to_its_end_or_its_limit() {
    let fs = volume();
    let file = resolve(&fs, b"/a/b/file", true).unwrap().ino;
    assert_eq!(read_all(&fs, file, 10).unwrap(), b"");
    let data = vec![7; (2 << 20) + 5];
    fs.write(&CX, file, 0, &data).unwrap();
    assert_eq!(read_all(&fs, file, data.len()).unwrap(), data);
    assert_eq!(errno(read_all(&fs, file, data.len() - 1)), Errno::FBIG);
    assert_eq!(errno(read_all(&fs, fs.root(), 10)), Errno::ISDIR);
}
