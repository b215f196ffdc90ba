//! Commands tried out on the model.

use std::sync::Arc;

use clap::Parser;
use onggi_model::ModelFs;
use onggi_vfs::{Context, FileSystem, Node, SetAttr, Timestamp};

use crate::args::Cli;
use crate::commands::Desk;
use crate::images::Images;
use crate::report::Complaints;

const CX: Context = Context { uid: 0, gid: 0, now: Timestamp { sec: 1_000_000_000, nsec: 7 } };

/// A volume under the name `v`, and another, empty, under the name `w`.
pub(crate) struct Trial {
    v: Arc<dyn FileSystem>,
    w: Arc<dyn FileSystem>,
}

impl Trial {
    pub(crate) fn new(fs: Arc<dyn FileSystem>) -> Self {
        Self { v: fs, w: Arc::new(ModelFs::new(4096)) }
    }

    pub(crate) fn fs(&self) -> &dyn FileSystem {
        &*self.v
    }

    pub(crate) fn other(&self) -> &dyn FileSystem {
        &*self.w
    }

    /// Runs a command; gives what it wrote and what it complained of, its final error included.
    pub(crate) fn ran(&self, command: &str, args: &[&str]) -> (String, Vec<String>) {
        let cli = Cli::try_parse_from(["onggi", command].iter().chain(args)).unwrap();
        let mut images = Images::with(&[("v", Arc::clone(&self.v)), ("w", Arc::clone(&self.w))]);
        let mut complaints = Complaints::kept();
        let mut out = Vec::new();
        let mut desk =
            Desk { images: &mut images, out: &mut out, terminal: false, complaints: &mut complaints };
        let result = crate::run_file_command(&cli.command, &mut desk).expect("a file command");
        complaints.note(result);
        (String::from_utf8(out).unwrap(), complaints.said().to_vec())
    }
}

/// `/.hidden`, `/dir/inner` (5 bytes), `/file` (5000 bytes, 0640, 5:6), `/link` to `dir/inner`.
pub(crate) fn tree() -> Arc<dyn FileSystem> {
    let fs = ModelFs::new(4096);
    let root = fs.root();
    let dir = fs.create(&CX, root, b"dir", Node::Directory, 0o755).unwrap();
    let inner = fs.create(&CX, dir.ino, b"inner", Node::Regular, 0o600).unwrap();
    fs.write(&CX, inner.ino, 0, b"inner").unwrap();
    let file = fs.create(&CX, root, b"file", Node::Regular, 0o640).unwrap();
    fs.write(&CX, file.ino, 0, &[b'x'; 5000]).unwrap();
    fs.setattr(
        &CX,
        file.ino,
        &SetAttr { uid: Some(5), gid: Some(6), perm: Some(0o640), ..SetAttr::default() },
    )
    .unwrap();
    fs.create(&CX, root, b"link", Node::Symlink(b"dir/inner"), 0o777).unwrap();
    fs.create(&CX, root, b".hidden", Node::Regular, 0o644).unwrap();
    Arc::new(fs)
}
