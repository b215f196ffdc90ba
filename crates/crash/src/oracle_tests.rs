//! What the oracle allows and what it does not, on runs without a device: operation n begins at event
//! n, and what it acknowledges stands from event n + 1 on.

use std::sync::Arc;

use onggi_model::{Compare, ModelFs, Session, Step, Tree, tree};
use onggi_vfs::FileSystem;

use crate::Promise;
use crate::history::History;
use crate::oracle::Oracle;

struct Case {
    history: History,
}

impl Case {
    fn new(lines: &[&str]) -> Self {
        let model = ModelFs::new(4096);
        let top = model.root();
        let mut history = History::empty();
        history.push_state(&model, top).unwrap();
        let mut session = Session::new(&model, top, Compare::ALL);
        for (index, line) in lines.iter().enumerate() {
            let step: Step = format!("{} 0:0 {line}", index + 1).parse().unwrap();
            history.begins.push(index);
            let outcome = session.run(&step);
            history.push_state(&model, top).unwrap();
            history.note(index, &step, &outcome, &session, index + 1);
        }
        Self { history }
    }

    /// The tree after so many operations.
    fn after(&self, state: usize) -> Tree {
        let model = &self.history.states[state].model;
        tree(model, model.root()).unwrap()
    }

    fn judge(&self, promise: Promise, tree: &Tree) -> Result<(), String> {
        let end = self.history.begins.len();
        Oracle::new(&self.history, promise, 512, 4096).judge(end, tree)
    }
}

#[test]
fn any_moment_since_the_last_sync_will_do() {
    let case = Case::new(&[
        "create /a file 644",
        "create /b file 644",
        "sync",
        "create /c dir 755",
        "rename /a /c/a replace",
        "setxattr /b =user.x 5 1 set",
    ]);
    for state in 2..=6 {
        case.judge(Promise::Ordered, &case.after(state)).unwrap();
    }
    for state in 0..2 {
        let what = case.judge(Promise::Ordered, &case.after(state)).unwrap_err();
        assert!(what.contains("something acknowledged was lost"), "{what}");
    }
    let mut mixed = case.after(3);
    mixed.nodes.remove(b"a".as_slice());
    let what = case.judge(Promise::Ordered, &mixed).unwrap_err();
    assert!(what.contains("no moment from 3 to 6"), "{what}");
}

#[test]
fn an_fsync_brings_the_names_up_to_its_inode() {
    let case = Case::new(&[
        "create /a file 644",
        "create /b file 644",
        "create /c file 644",
        "fsync /b",
        "link /c /d",
    ]);
    assert!(case.judge(Promise::Ordered, &case.after(1)).is_err());
    case.judge(Promise::Ordered, &case.after(2)).unwrap();
    case.judge(Promise::Ordered, &case.after(5)).unwrap();
}

#[test]
fn an_fsync_of_a_directory_covers_its_entries() {
    let case = Case::new(&["create /d dir 755", "create /d/a file 644", "fsync /d", "create /d/b file 644"]);
    assert!(case.judge(Promise::Ordered, &case.after(1)).is_err());
    case.judge(Promise::Ordered, &case.after(2)).unwrap();
}

/// A file of 9000 bytes that is synced, then its middle overwritten, then 20000 bytes long.
fn written() -> Case {
    Case::new(&[
        "create /a file 644",
        "write /a 0 9000 1",
        "fsync /a",
        "write /a 2000 4000 2",
        "write /a 9000 11000 3",
    ])
}

fn with_file(case: &Case, state: usize, change: impl FnOnce(&mut onggi_model::Node)) -> Tree {
    let mut tree = case.after(state);
    change(tree.nodes.get_mut(b"a".as_slice()).unwrap());
    tree
}

fn poke(node: &mut onggi_model::Node, at: u64, bytes: &[u8]) {
    let block = node.content.entry(at / 4096).or_insert_with(|| vec![0; 4096].into());
    let at = (at % 4096) as usize;
    Arc::make_mut(block)[at..at + bytes.len()].copy_from_slice(bytes);
}

#[test]
fn a_growing_file_may_lag() {
    let case = written();
    for size in [9000, 12_288, 19_999, 20_000] {
        let tree = with_file(&case, 5, |node| node.size = size);
        case.judge(Promise::Ordered, &tree).unwrap();
    }
    for size in [0, 8999, 20_001] {
        let what = case.judge(Promise::Ordered, &with_file(&case, 5, |node| node.size = size)).unwrap_err();
        assert!(what.contains("size"), "{what}");
    }
    // Blocks that were never written home read as zeroes, those that were hold old or new.
    let lost = with_file(&case, 5, |node| {
        node.content.remove(&4);
    });
    case.judge(Promise::Ordered, &lost).unwrap();
    let overwritten =
        with_file(&case, 3, |node| node.content = case.after(4).nodes[b"a".as_slice()].content.clone());
    case.judge(Promise::Ordered, &overwritten).unwrap();
}

#[test]
fn synced_bytes_neither_vanish_nor_turn_into_others() {
    let case = written();
    let zeroed = with_file(&case, 5, |node| {
        node.content.remove(&0);
    });
    let what = case.judge(Promise::Ordered, &zeroed).unwrap_err();
    assert!(what.contains("zeroes at byte 0"), "{what}");
    let stale = with_file(&case, 5, |node| poke(node, 12_288, &[0xa5; 512]));
    let what = case.judge(Promise::Ordered, &stale).unwrap_err();
    assert!(what.contains("stale data of the bare device at byte 12288"), "{what}");
    let bit = with_file(&case, 5, |node| poke(node, 8000, &[0]));
    let what = case.judge(Promise::Ordered, &bit).unwrap_err();
    assert!(what.contains("foreign or torn bytes at byte 7680"), "{what}");
    // In writeback mode what changed since is anything's; what did not, is not.
    case.judge(Promise::Writeback, &stale).unwrap();
    assert!(case.judge(Promise::Writeback, &bit).is_err());
}

#[test]
fn sectors_may_be_torn_apart_and_whole_blocks_not() {
    let case = written();
    let old = case.after(3).nodes[b"a".as_slice()].content[&0].clone();
    let torn = with_file(&case, 5, |node| poke(node, 2048, &old[2048..2560]));
    case.judge(Promise::Ordered, &torn).unwrap();
    assert!(case.judge(Promise::WholeBlocks, &torn).is_err());
    let half = with_file(&case, 5, |node| poke(node, 2048, &old[2048..2300]));
    assert!(case.judge(Promise::Ordered, &half).is_err());
}

#[test]
fn a_truncation_is_not_undone_once_later_names_show() {
    let case = Case::new(&[
        "create /a file 644",
        "write /a 0 9000 1",
        "fsync /a",
        "setattr /a size=10",
        "create /b file 644",
    ]);
    let undone = with_file(&case, 5, |node| {
        let before = &case.after(3).nodes[b"a".as_slice()];
        (node.size, node.content) = (before.size, before.content.clone());
    });
    assert!(case.judge(Promise::Ordered, &undone).is_err());
    case.judge(Promise::Ordered, &case.after(3)).unwrap();
    case.judge(Promise::Ordered, &case.after(5)).unwrap();
}

#[test]
fn times_are_those_of_some_moment_since_the_fsync() {
    let case =
        Case::new(&["create /a file 644", "write /a 0 10 1", "fsync /a", "write /a 0 10 2", "fdatasync /a"]);
    let early = with_file(&case, 5, |node| node.mtime = onggi_model::moment(1));
    assert!(case.judge(Promise::Ordered, &early).unwrap_err().contains("mtime"));
    let synced = with_file(&case, 5, |node| node.mtime = onggi_model::moment(2));
    case.judge(Promise::Ordered, &synced).unwrap();
    // But the contents that fdatasync acknowledged are there.
    let old = case.after(3);
    assert!(case.judge(Promise::Ordered, &old).unwrap_err().contains("foreign or torn bytes at byte 0"));
}
