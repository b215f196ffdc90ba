//! A run, and what it promised when.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use onggi_block_device::BlockDevice;
use onggi_fault_device::{Event, Recorder, Snapshot};
use onggi_model::{Compare, ModelFs, Node, Op, Outcome, Session, Step, Tree, moment, shape};
use onggi_vfs::{Context, FileKind, FileSystem, Ino};

use crate::Engine;

/// The directory that a run lives in.
pub(crate) const TOP: &[u8] = b"onggi-crash";

/// The model after some number of operations.
pub(crate) struct State {
    pub(crate) model: ModelFs,
    pub(crate) shape: Tree,
    pub(crate) digest: u64,
}

/// A call for durability that returned.
pub(crate) struct Ack {
    /// The operation's index; one past the last for the unmount.
    pub(crate) step: usize,
    /// Length of the log when it returned.
    pub(crate) position: usize,
    /// The state that it acknowledged.
    pub(crate) state: usize,
    /// The whole volume where `None`.
    pub(crate) inode: Option<Ino>,
    /// Also the inode's attributes.
    pub(crate) attributes: bool,
    /// The namespace is at least this state's from then on.
    pub(crate) floor: usize,
}

/// A run on an engine and on the model, recorded.
pub(crate) struct History {
    pub(crate) log: Vec<Event>,
    /// Length of the log when the run proper began: everything before is durable.
    pub(crate) start: usize,
    /// State n is that after n operations.
    pub(crate) states: Vec<State>,
    /// Length of the log when each operation began.
    pub(crate) begins: Vec<usize>,
    pub(crate) acks: Vec<Ack>,
    /// States right after a file's size was set, with the file.
    pub(crate) truncations: Vec<(usize, Ino)>,
}

/// What the namespace tells of a node.
pub(crate) fn node_digest(path: &[u8], node: &Node) -> u64 {
    let mut hasher = DefaultHasher::new();
    let Node { kind, perm, uid, gid, nlink, rdev, target, xattrs, same_as, .. } = node;
    (path, kind, perm, uid, gid, nlink, rdev, target, xattrs, same_as).hash(&mut hasher);
    hasher.finish()
}

pub(crate) fn namespace_digest(tree: &Tree) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (path, node) in &tree.nodes {
        node_digest(path, node).hash(&mut hasher);
    }
    hasher.finish()
}

/// A directory, a name in it, and what that names.
type Name<'a> = (Ino, &'a [u8], Ino);

/// What an fsync of one inode makes durable of the namespace: its names, its attributes and, of a
/// directory, its entries.
fn view(tree: &Tree, ino: Ino) -> Option<(u64, BTreeSet<Name<'_>>)> {
    let (_, node) = tree.nodes.iter().find(|(_, node)| node.ino == ino)?;
    let mut names = BTreeSet::new();
    for (path, node) in &tree.nodes {
        let (dir, name) = match path.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b""[..], &path[..]),
        };
        if let Some(dir) = tree.nodes.get(dir)
            && (node.ino == ino || dir.ino == ino)
        {
            names.insert((dir.ino, name, node.ino));
        }
    }
    let mut hasher = DefaultHasher::new();
    (node.perm, node.uid, node.gid, node.nlink, &node.xattrs).hash(&mut hasher);
    Some((hasher.finish(), names))
}

impl History {
    pub(crate) fn empty() -> Self {
        Self {
            log: Vec::new(),
            start: 0,
            states: Vec::new(),
            begins: Vec::new(),
            acks: Vec::new(),
            truncations: Vec::new(),
        }
    }

    /// Runs `steps` on a fresh mount of `base`, then unmounts.
    ///
    /// # Errors
    /// An engine that does not do as the model; and how many operations were run.
    pub(crate) fn record(
        engine: &dyn Engine,
        base: &Arc<dyn BlockDevice>,
        steps: &[Step],
    ) -> Result<Self, (usize, String)> {
        let device = Arc::new(Recorder::new(Snapshot::over(Arc::clone(base))));
        let fs =
            engine.mount(device.clone()).map_err(|why| (0, format!("mount of a fresh volume: {why}")))?;
        let model = ModelFs::with_limits(engine.limits());
        let started = |what: &str| {
            let what = what.to_owned();
            move |error: onggi_vfs::Error| (0, format!("{what}: {error:?}"))
        };
        let cx = Context { uid: 0, gid: 0, now: moment(0) };
        let make_top = |fs: &dyn FileSystem| {
            let made = fs.create(&cx, fs.root(), TOP, onggi_vfs::Node::Directory, 0o755);
            made.map(|attr| attr.ino).map_err(started("making the top directory"))
        };
        let (top, model_top) = (make_top(&*fs)?, make_top(&model)?);
        fs.sync().map_err(started("the first sync"))?;
        let mut history = Self { start: device.len(), ..Self::empty() };
        history.push_state(&model, model_top).map_err(|what| (0, what))?;
        {
            let mut live = Session::new(&*fs, top, Compare::ALL);
            let mut oracle = Session::new(&model, model_top, Compare::ALL);
            for (index, step) in steps.iter().enumerate() {
                history.begins.push(device.len());
                let got = live.run(step);
                let want = oracle.run(step);
                if got != want {
                    let what = format!("{step}\n  engine: {got:?}\n  model:  {want:?}");
                    return Err((index + 1, what));
                }
                history.push_state(&model, model_top).map_err(|what| (index + 1, what))?;
                history.note(index, step, &want, &oracle, device.len());
            }
            live.close_all();
        }
        let ended = |what: &str, error: onggi_vfs::Error| (steps.len(), format!("{what}: {error:?}"));
        fs.unmount().map_err(|error| ended("unmount", error))?;
        history.acknowledge(steps.len(), device.len(), None, true);
        drop(fs);
        history.log = device.log();
        Ok(history)
    }

    pub(crate) fn push_state(&mut self, model: &ModelFs, top: Ino) -> Result<(), String> {
        let model = model.snapshot();
        let shape = shape(&model, top).map_err(|error| format!("the model: {error}"))?;
        self.states.push(State { digest: namespace_digest(&shape), model, shape });
        Ok(())
    }

    /// Remembers what a step that was run promised, and which sizes it set.
    pub(crate) fn note(
        &mut self,
        index: usize,
        step: &Step,
        outcome: &Outcome,
        oracle: &Session<'_>,
        position: usize,
    ) {
        match (&step.op, outcome) {
            (Op::Sync, Outcome::Done) => self.acknowledge(index, position, None, true),
            (Op::Fsync { at, datasync }, Outcome::Done) => {
                if let Ok(ino) = oracle.resolve(at) {
                    self.acknowledge(index, position, Some(ino), !datasync);
                }
            }
            (Op::Setattr { at, changes }, Outcome::Attr(_)) if changes.size.is_some() => {
                if let Ok(ino) = oracle.resolve(at) {
                    self.truncations.push((index + 1, ino));
                }
            }
            _ => {}
        }
    }

    fn acknowledge(&mut self, step: usize, position: usize, inode: Option<Ino>, attributes: bool) {
        let state = self.states.len() - 1;
        let floor = match inode {
            None => state,
            Some(ino) if attributes => self.unchanged_since(state, ino),
            Some(ino) => {
                let known = |state: &State| state.shape.nodes.values().any(|node| node.ino == ino);
                self.states.iter().position(known).unwrap_or(0)
            }
        };
        self.acks.push(Ack { step, position, state, inode, attributes, floor });
    }

    /// The first state from which on to `state` an fsync of `ino` covers the same.
    fn unchanged_since(&self, state: usize, ino: Ino) -> usize {
        let Some(now) = view(&self.states[state].shape, ino) else { return 0 };
        let mut since = state;
        while since > 0 && view(&self.states[since - 1].shape, ino).as_ref() == Some(&now) {
            since -= 1;
        }
        since
    }

    /// The latest state that can show at a cut: that of the last operation that had begun.
    pub(crate) fn latest(&self, position: usize) -> usize {
        self.begins.partition_point(|&begin| begin < position)
    }

    /// What had been acknowledged at a cut.
    pub(crate) fn acks_at(&self, position: usize) -> impl Iterator<Item = &Ack> {
        self.acks.iter().filter(move |ack| ack.position <= position)
    }
}

/// Numbers of the inodes at each path, to tell apart states that look alike.
pub(crate) fn identities(tree: &Tree) -> BTreeMap<&[u8], (Ino, FileKind)> {
    tree.nodes.iter().map(|(path, node)| (path.as_slice(), (node.ino, node.kind))).collect()
}
