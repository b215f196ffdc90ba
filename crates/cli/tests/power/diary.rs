//! What one directory held after each operation, and how much of it was promised to last.

use std::collections::{BTreeMap, BTreeSet};

use onggi_model::Node;
use onggi_vfs::FileKind;

/// What a power cut never splits.
const SECTOR: usize = 512;

/// A file or directory, whatever its names.
pub(crate) type Id = usize;

/// An inode's past.
#[derive(Default)]
pub(crate) struct Thing {
    pub(crate) is_dir: bool,
    /// A file's contents from the beginning on.
    pub(crate) versions: Vec<Vec<u8>>,
    /// The version that was last promised.
    promised: usize,
}

impl Thing {
    pub(crate) fn latest(&self) -> &[u8] {
        self.versions.last().map_or(&[], Vec::as_slice)
    }
}

/// A directory's past. Every change is noted before it is asked for: it may have happened.
pub(crate) struct Diary {
    /// Names after each change of them.
    states: Vec<BTreeMap<String, Id>>,
    pub(crate) things: Vec<Thing>,
    /// The state that was last promised.
    promised: usize,
    /// Promises made.
    pub(crate) promises: u64,
}

impl Diary {
    /// An empty directory, durable.
    pub(crate) fn new() -> Self {
        Self { states: vec![BTreeMap::new()], things: Vec::new(), promised: 0, promises: 0 }
    }

    pub(crate) fn names(&self) -> &BTreeMap<String, Id> {
        self.states.last().expect("the first is always there")
    }

    pub(crate) fn add_thing(&mut self, is_dir: bool) -> Id {
        self.things.push(Thing { is_dir, versions: vec![Vec::new()], promised: 0 });
        self.things.len() - 1
    }

    pub(crate) fn change_names(&mut self, change: impl FnOnce(&mut BTreeMap<String, Id>)) {
        let mut names = self.names().clone();
        change(&mut names);
        self.states.push(names);
    }

    pub(crate) fn change_contents(&mut self, id: Id, change: impl FnOnce(&mut Vec<u8>)) {
        let mut contents = self.things[id].latest().to_vec();
        change(&mut contents);
        self.things[id].versions.push(contents);
    }

    /// An fsync of the directory came back.
    pub(crate) fn names_promised(&mut self) {
        self.promised = self.states.len() - 1;
        self.promises += 1;
    }

    /// An fsync or fdatasync of a file came back: its contents will last, and after fsync its names too.
    pub(crate) fn contents_promised(&mut self, id: Id, names_too: bool) {
        let thing = &mut self.things[id];
        thing.promised = thing.versions.len() - 1;
        self.promises += 1;
        let names = |state: &BTreeMap<String, Id>| -> BTreeSet<String> {
            state.iter().filter(|(_, of)| **of == id).map(|(name, _)| name.clone()).collect()
        };
        let floor = if names_too {
            let now = names(self.names());
            self.states.iter().rposition(|state| names(state) != now).map_or(0, |last| last + 1)
        } else {
            self.states.iter().position(|state| !names(state).is_empty()).unwrap_or(0)
        };
        self.promised = self.promised.max(floor);
    }

    /// What came back must be what was there at one moment since the last promise.
    pub(crate) fn judge(&self, found: &BTreeMap<String, Node>) -> Result<(), String> {
        let mut why = None;
        for (moment, state) in self.states.iter().enumerate().skip(self.promised) {
            match self.judge_moment(state, found) {
                Ok(()) => return Ok(()),
                // Of the nearest moment: one whose names fit, if there is one.
                Err((named, what)) => {
                    if named || why.is_none() {
                        why = Some(format!("as of change {moment}: {what}"));
                    }
                }
            }
        }
        let names: Vec<_> = found.keys().collect();
        let promised: Vec<_> = self.states[self.promised].keys().collect();
        Err(format!(
            "nothing from change {} (promised, {promised:?}) to {} fits what is there, {names:?}; {}",
            self.promised,
            self.states.len() - 1,
            why.unwrap_or_default()
        ))
    }

    /// An error says whether the names at least fit.
    fn judge_moment(
        &self,
        state: &BTreeMap<String, Id>,
        found: &BTreeMap<String, Node>,
    ) -> Result<(), (bool, String)> {
        if !state.keys().eq(found.keys()) {
            return Err((false, "other names".into()));
        }
        let mut inodes = BTreeMap::new();
        for (name, node) in found {
            let id = state[name];
            if *inodes.entry(id).or_insert(node.ino) != node.ino {
                return Err((true, format!("{name}: no longer the same file as its other names")));
            }
            let thing = &self.things[id];
            let links = if thing.is_dir { 2 } else { state.values().filter(|of| **of == id).count() as u32 };
            if (node.kind == FileKind::Directory) != thing.is_dir || node.nlink != links {
                return Err((
                    true,
                    format!("{name}: {:?} with {} links, not {links}", node.kind, node.nlink),
                ));
            }
            if !thing.is_dir {
                judge_contents(&thing.versions[thing.promised..], node)
                    .map_err(|what| (true, format!("{name}: {what}")))?;
            }
        }
        let files: BTreeSet<_> = inodes.values().collect();
        if files.len() == inodes.len() { Ok(()) } else { Err((true, "two files have become one".into())) }
    }
}

/// Each sector holds what one of the versions has there; the size is one of theirs, or between two while
/// the file grew.
fn judge_contents(versions: &[Vec<u8>], node: &Node) -> Result<(), String> {
    let size = node.size as usize;
    let had = versions.iter().any(|version| version.len() == size);
    let growing = versions.windows(2).any(|pair| (pair[0].len()..=pair[1].len()).contains(&size));
    if !had && !growing {
        let sizes: Vec<_> = versions.iter().map(Vec::len).collect();
        return Err(format!("{size} bytes; since its promise it had {sizes:?}"));
    }
    let mut bytes = vec![0; size];
    for (&block, content) in &node.content {
        let start = (block * onggi_model::CONTENT_BLOCK) as usize;
        let len = content.len().min(size.saturating_sub(start));
        bytes[start..start + len].copy_from_slice(&content[..len]);
    }
    for (number, sector) in bytes.chunks(SECTOR).enumerate() {
        let start = number * SECTOR;
        let fits = versions.iter().any(|version| {
            let there = version.get(start..).unwrap_or_default();
            let there = &there[..there.len().min(sector.len())];
            sector.starts_with(there) && sector[there.len()..].iter().all(|&byte| byte == 0)
        });
        if !fits {
            let kind = if sector.iter().all(|&byte| byte == 0) { "zeroes" } else { "foreign bytes" };
            return Err(format!(
                "{kind} at byte {start} of {size}, which {} versions since its promise never had",
                versions.len()
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use onggi_vfs::{Ino, Timestamp};

    fn node(ino: u64, bytes: &[u8]) -> Node {
        let time = Timestamp { sec: 0, nsec: 0 };
        let mut block = bytes.to_vec();
        block.resize(onggi_model::CONTENT_BLOCK as usize, 0);
        Node {
            ino: Ino(ino),
            kind: FileKind::Regular,
            perm: 0o644,
            uid: 0,
            gid: 0,
            nlink: 1,
            rdev: (0, 0),
            size: bytes.len() as u64,
            mtime: time,
            ctime: time,
            crtime: time,
            target: None,
            xattrs: BTreeMap::new(),
            same_as: Vec::new(),
            content: BTreeMap::from([(0, block.into())]),
        }
    }

    /// A file that was written twice, with a promise in between.
    fn written_twice() -> Diary {
        let mut diary = Diary::new();
        let id = diary.add_thing(false);
        diary.change_names(|names| {
            names.insert("a".into(), id);
        });
        diary.change_contents(id, |bytes| bytes.extend([1; 600]));
        diary.contents_promised(id, true);
        diary.change_contents(id, |bytes| bytes.fill(2));
        diary.change_names(|names| {
            names.insert("b".into(), id);
        });
        diary
    }

    #[test]
    fn losses_are_seen() {
        let found = |bytes: &[u8]| BTreeMap::from([("a".to_string(), node(12, bytes))]);
        let diary = written_twice();
        diary.judge(&found(&[1; 600])).unwrap();
        diary.judge(&found(&[[1; 512].as_slice(), &[2; 88]].concat())).unwrap();
        for bad in [&[0; 600][..], &[1; 512], &[3; 600], &[], &[[1; 300], [2; 300]].concat()] {
            diary.judge(&found(bad)).unwrap_err();
        }
        diary.judge(&BTreeMap::new()).unwrap_err();
        // Both names, but of two files.
        let mut apart = found(&[1; 600]);
        apart.insert("b".into(), node(13, &[1; 600]));
        diary.judge(&apart).unwrap_err();
    }
}
