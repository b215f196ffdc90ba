//! Whether a recovered tree keeps what was promised.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use onggi_model::{Blocks, CONTENT_BLOCK, Compare, Node, Tree, contents};
use onggi_vfs::{Attr, FileKind, FileSystem, Ino, Timestamp};

use crate::history::{History, State, identities, namespace_digest};
use crate::{Promise, STALE};

/// Judges recovered trees by a history.
pub(crate) struct Oracle<'a> {
    history: &'a History,
    promise: Promise,
    /// What may be torn from what in a file: a sector or, where it is smaller, a block.
    grain: usize,
    /// Contents by inode and the time of their last change, which every change moves.
    cache: RefCell<HashMap<(Ino, Timestamp, u64), Rc<Blocks>>>,
}

/// What was acknowledged at one cut.
struct Floors {
    namespace: usize,
    latest: usize,
    everything: usize,
    contents: BTreeMap<Ino, usize>,
    attributes: BTreeMap<Ino, usize>,
}

/// An inode as it was from some state on.
struct Version<'a> {
    state: usize,
    attr: Attr,
    model: &'a State,
}

impl<'a> Oracle<'a> {
    pub(crate) fn new(history: &'a History, promise: Promise, sector: u32, block: u32) -> Self {
        let grain = if promise == Promise::WholeBlocks { block } else { sector.min(block) };
        let grain = grain.min(CONTENT_BLOCK as u32).max(1) as usize;
        Self { history, promise, grain, cache: RefCell::default() }
    }

    fn floors(&self, position: usize) -> Floors {
        let latest = self.history.latest(position);
        let (contents, attributes) = (BTreeMap::new(), BTreeMap::new());
        let mut floors = Floors { namespace: 0, latest, everything: 0, contents, attributes };
        for ack in self.history.acks_at(position) {
            floors.namespace = floors.namespace.max(ack.floor);
            match ack.inode {
                None => floors.everything = floors.everything.max(ack.state),
                Some(ino) => {
                    floors.contents.insert(ino, ack.state);
                    if ack.attributes {
                        floors.attributes.insert(ino, ack.state);
                    }
                }
            }
        }
        floors
    }

    /// Compares what came back after a cut at `position` with what was promised there.
    ///
    /// # Errors
    /// What does not hold.
    pub(crate) fn judge(&self, position: usize, found: &Tree) -> Result<(), String> {
        let floors = self.floors(position);
        let digest = namespace_digest(found);
        let range = floors.namespace..=floors.latest;
        let mut tried = BTreeSet::new();
        let mut first_error = None;
        for state in range.clone().filter(|&state| self.history.states[state].digest == digest) {
            let identities: Vec<_> = identities(&self.history.states[state].shape).into_iter().collect();
            if !tried.insert(identities) {
                continue;
            }
            match self.judge_files(&floors, state, found) {
                Ok(()) => return Ok(()),
                Err(what) => {
                    let what = format!("with the names as after {state} operations: {what}");
                    first_error.get_or_insert(what);
                }
            }
        }
        Err(first_error.unwrap_or_else(|| self.no_such_namespace(range, found)))
    }

    fn no_such_namespace(&self, range: std::ops::RangeInclusive<usize>, found: &Tree) -> String {
        let compare = Compare { times: false, crtime: false };
        let names_only = |tree: &Tree| {
            let mut tree = tree.clone();
            tree.nodes.values_mut().for_each(|node| {
                node.size = 0;
                node.content.clear();
            });
            tree
        };
        let found = names_only(found);
        let diffs = range
            .clone()
            .map(|state| (state, found.diff(&names_only(&self.history.states[state].shape), compare)));
        let (state, lines) = diffs.min_by_key(|(_, lines)| lines.len()).unwrap_or_default();
        let digest = namespace_digest(&found);
        let before = self.history.states[..*range.start()].iter().rposition(|state| state.digest == digest);
        let lost = before.map_or(String::new(), |before| {
            format!(" They are those after {before} operations: something acknowledged was lost.")
        });
        format!(
            "the names are those of no moment from {} to {} operations.{lost} Nearest, after {state}:\n  {}",
            range.start(),
            range.end(),
            lines.into_iter().take(12).collect::<Vec<_>>().join("\n  ")
        )
    }

    fn judge_files(&self, floors: &Floors, state: usize, found: &Tree) -> Result<(), String> {
        for (path, node) in &found.nodes {
            if node.same_as != *path {
                continue;
            }
            let Some(known) = self.history.states[state].shape.nodes.get(path) else { continue };
            let at = |what: String| format!("/{}: {what}", path.escape_ascii());
            self.judge_times(floors, known, node).map_err(at)?;
            if node.kind == FileKind::Regular {
                self.judge_contents(floors, state, known.ino, node).map_err(at)?;
            }
        }
        Ok(())
    }

    /// The inode in every state from `from` on in which it changed.
    fn versions(&self, ino: Ino, from: usize, latest: usize) -> Vec<Version<'a>> {
        let mut versions: Vec<Version<'a>> = Vec::new();
        for state in from..=latest {
            let model = &self.history.states[state];
            let Ok(attr) = model.model.getattr(ino) else { continue };
            let seen = versions.last().map(|last| (last.attr.ctime, last.attr.mtime, last.attr.size));
            if seen != Some((attr.ctime, attr.mtime, attr.size)) {
                versions.push(Version { state, attr, model });
            }
        }
        versions
    }

    fn judge_times(&self, floors: &Floors, known: &Node, node: &Node) -> Result<(), String> {
        if node.crtime != known.crtime {
            let since = self.versions(known.ino, 0, floors.latest);
            if !since.iter().any(|version| version.attr.crtime == node.crtime) {
                return Err(format!("created at {:?}, not at {:?}", node.crtime, known.crtime));
            }
        }
        let floor = floors.attributes.get(&known.ino).copied().unwrap_or(0).max(floors.everything);
        let versions = self.versions(known.ino, floor, floors.latest);
        // An operation that sets a time may stamp its own first, which is its ctime.
        let ctimes = versions.iter().map(|version| version.attr.ctime);
        let mtimes = versions.iter().map(|version| version.attr.mtime);
        let known = [
            ("ctime", node.ctime, ctimes.clone().collect()),
            ("mtime", node.mtime, mtimes.chain(ctimes).collect::<Vec<_>>()),
        ];
        for (what, got, known) in known {
            if !known.contains(&got) {
                let known = &known[..known.len().min(8)];
                return Err(format!("{what} {got:?} is none it had since {floor} operations: {known:?}"));
            }
        }
        Ok(())
    }

    fn judge_contents(&self, floors: &Floors, state: usize, ino: Ino, node: &Node) -> Result<(), String> {
        let floor = floors.contents.get(&ino).copied().unwrap_or(0).max(floors.everything);
        let versions = self.versions(ino, floor, floors.latest);
        let cut_short = self.history.truncations.iter().filter(|&&(at, file)| file == ino && at <= state);
        let sized = cut_short.map(|&(at, _)| at).max().unwrap_or(0).max(floor);
        judge_size(&versions, sized, node.size)?;
        let known: Vec<_> =
            versions.iter().map(|version| self.contents(ino, version)).collect::<Result<_, _>>()?;
        let blocks: BTreeSet<u64> =
            known.iter().flat_map(|blocks| blocks.keys()).chain(node.content.keys()).copied().collect();
        let zero = vec![0; CONTENT_BLOCK as usize];
        for block in blocks {
            let start = block * CONTENT_BLOCK;
            let Some(left) = node.size.checked_sub(start).filter(|&left| left > 0) else { continue };
            let len = left.min(CONTENT_BLOCK) as usize;
            let of = |blocks: &'_ Blocks| blocks.get(&block).cloned();
            let got = of(&node.content);
            let got = &got.as_deref().unwrap_or(&zero)[..len];
            let known: Vec<_> = known.iter().map(|blocks| of(blocks)).collect();
            let known: Vec<_> = known.iter().map(|bytes| &bytes.as_deref().unwrap_or(&zero)[..len]).collect();
            self.judge_block(start, got, &known)
                .map_err(|what| format!("{what}, since {floor} operations"))?;
        }
        Ok(())
    }

    fn judge_block(&self, start: u64, got: &[u8], known: &[&[u8]]) -> Result<(), String> {
        for (nth, piece) in got.chunks(self.grain).enumerate() {
            let range = nth * self.grain..nth * self.grain + piece.len();
            let mut held = known.iter().map(|block| &block[range.clone()]);
            if held.clone().any(|held| held == piece) {
                continue;
            }
            let first = held.next();
            if self.promise == Promise::Writeback && held.any(|other| Some(other) != first) {
                continue;
            }
            let at = start + range.start as u64;
            let kind = if piece.iter().all(|&byte| byte == STALE) {
                "stale data of the bare device"
            } else if piece.iter().all(|&byte| byte == 0) {
                "zeroes"
            } else {
                "foreign or torn bytes"
            };
            return Err(format!(
                "{kind} at byte {at}: {:02x?}…, but it only ever held {:02x?}…",
                &piece[..piece.len().min(16)],
                known.last().map(|block| &block[range.clone()][..piece.len().min(16)])
            ));
        }
        Ok(())
    }

    fn contents(&self, ino: Ino, version: &Version<'_>) -> Result<Rc<Blocks>, String> {
        let key = (ino, version.attr.ctime, version.attr.size);
        if let Some(known) = self.cache.borrow().get(&key) {
            return Ok(Rc::clone(known));
        }
        let blocks = contents(&version.model.model, ino).map_err(|error| format!("the model: {error}"))?;
        let blocks = Rc::new(blocks);
        self.cache.borrow_mut().insert(key, Rc::clone(&blocks));
        Ok(blocks)
    }
}

/// A size is one that the file had, or lies between two while it grew.
fn judge_size(versions: &[Version<'_>], from: usize, got: u64) -> Result<(), String> {
    // The version that held at `from`, and those after it.
    let first = versions.iter().rposition(|version| version.state <= from).unwrap_or(0);
    let sizes: Vec<u64> = versions[first..].iter().map(|version| version.attr.size).collect();
    let had = sizes.contains(&got);
    let growing = sizes.windows(2).any(|pair| (pair[0]..=pair[1]).contains(&got));
    if had || growing {
        return Ok(());
    }
    Err(format!("size {got} is none it had since {from} operations: {:?}", &sizes[..sizes.len().min(12)]))
}
