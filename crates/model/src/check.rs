//! An engine against the model: the same operations, the same answers, the same tree.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use onggi_vfs::{Context, Errno, FileSystem, Ino, Node, Whence};

use crate::generate::{Generator, Profile};
use crate::ops::{Op, Step, moment};
use crate::session::{Outcome, Session};
use crate::tree::{Compare, tree};
use crate::{Limits, ModelFs};

/// The directory that a run lives in.
const TOP: &[u8] = b"onggi-run";

/// How an engine is compared with the model.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// What is generated, and the limits that the model keeps to.
    pub profile: Profile,
    /// What is compared.
    pub compare: Compare,
    /// A whole tree is compared after so many steps, and at the end; 0 for only at the end.
    pub tree_every: usize,
    /// Seeks must find exactly what was written. Otherwise data may be claimed where none was
    /// written, and never a hole where some was.
    pub exact_seek: bool,
    /// At the end everything is removed and as many blocks and inodes must be free as at the start.
    pub leak_check: bool,
}

/// Where an engine and the model parted.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed, where there was one.
    pub seed: Option<u64>,
    /// Number of the step in the trace, from 0.
    pub index: usize,
    /// The trace up to and with the step that showed it.
    pub steps: Vec<Step>,
    /// What differed.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(seed) = self.seed {
            writeln!(f, "seed {seed} (replay with ONGGI_SEED={seed}), step {}", self.index)?;
        } else {
            writeln!(f, "step {}", self.index)?;
        }
        writeln!(f, "{}", self.what)?;
        writeln!(f, "the last operations:")?;
        let from = self.steps.len().saturating_sub(25);
        self.steps[from..].iter().try_for_each(|step| writeln!(f, "  {step}"))
    }
}

impl std::error::Error for Failure {}

/// The seed to run: `ONGGI_SEED` where it is set, else `default`.
#[must_use]
pub fn seed_or(default: u64) -> u64 {
    std::env::var("ONGGI_SEED").ok().and_then(|seed| seed.trim().parse().ok()).unwrap_or(default)
}

/// Runs `steps` random operations on a fresh 4096-byte-block ext4 engine and on the model.
/// `ONGGI_SEED` overrides the seed.
///
/// # Errors
/// The first difference.
pub fn check_against_model(fs: &dyn FileSystem, seed: u64, steps: usize) -> Result<(), Box<Failure>> {
    Check::ext4(4096).run(fs, seed_or(seed), steps)
}

impl Check {
    /// Everything that an ext4 engine with this block size promises.
    #[must_use]
    pub fn ext4(block_size: u32) -> Self {
        Self {
            profile: Profile::full(Limits::ext4(block_size)),
            compare: Compare::ALL,
            tree_every: 250,
            exact_seek: false,
            leak_check: true,
        }
    }

    /// Runs the seed's first `steps` operations.
    ///
    /// # Errors
    /// The first difference.
    pub fn run(&self, fs: &dyn FileSystem, seed: u64, steps: usize) -> Result<(), Box<Failure>> {
        let steps: Vec<_> = Generator::new(seed, self.profile).take(steps).collect();
        self.replay(fs, &steps).map_err(|failure| Box::new(Failure { seed: Some(seed), ..*failure }))
    }

    /// Runs the seed's first `steps` operations, unmounting and mounting again after each `every`: what
    /// was there must come back. `mount` mounts the volume, fresh the first time.
    ///
    /// # Errors
    /// The first difference.
    pub fn run_remounting(
        &self,
        mount: &mut dyn FnMut() -> Arc<dyn FileSystem>,
        seed: u64,
        steps: usize,
        every: usize,
    ) -> Result<(), Box<Failure>> {
        let steps: Vec<_> = Generator::new(seed, self.profile).take(steps).collect();
        let trace = Trace { check: self, steps: &steps, seed: Some(seed) };
        let model = ModelFs::with_limits(self.profile.limits);
        let model_top = trace.make_top(&model)?;
        let fs = mount();
        trace.make_top(&*fs)?;
        fs.unmount().map_err(|error| trace.fail(0, format!("unmount: {error:?}")))?;
        drop(fs);
        let mut start = 0;
        loop {
            let end = steps.len().min(start + every.max(1));
            let fs = mount();
            let found = fs.lookup(fs.root(), TOP).map(|attr| attr.ino);
            let top = found.map_err(|error| trace.fail(start, format!("after a mount: {error:?}")))?;
            let pair = Pair { fs: &*fs, top, model: &model, model_top };
            let compared = self.compare_trees(&pair);
            compared.map_err(|what| trace.fail(start, format!("after a mount, {what}")))?;
            trace.play(&pair, start..end)?;
            fs.unmount().map_err(|error| trace.fail(end, format!("unmount: {error:?}")))?;
            if start == end {
                return Ok(());
            }
            start = end;
        }
    }

    /// Runs a trace on an engine and on a fresh model.
    ///
    /// # Errors
    /// The first difference.
    pub fn replay(&self, fs: &dyn FileSystem, steps: &[Step]) -> Result<(), Box<Failure>> {
        let trace = Trace { check: self, steps, seed: None };
        let model = ModelFs::with_limits(self.profile.limits);
        let before = fs.statfs().map_err(|error| trace.fail(0, format!("statfs: {error:?}")))?;
        let pair = Pair { fs, top: trace.make_top(fs)?, model: &model, model_top: trace.make_top(&model)? };
        trace.play(&pair, 0..steps.len())?;
        if !self.leak_check {
            return Ok(());
        }
        let end = steps.len();
        remove_all(fs, pair.top)
            .map_err(|error| trace.fail(end, format!("removing everything: {error:?}")))?;
        let after = fs.sync().and_then(|()| fs.sync()).and_then(|()| fs.statfs());
        let after =
            after.map_err(|error| trace.fail(end, format!("sync and statfs at the end: {error:?}")))?;
        if (before.free_blocks, before.free_inodes) == (after.free_blocks, after.free_inodes) {
            return Ok(());
        }
        let what = format!("with everything removed again:\n  before {before:?}\n  after  {after:?}");
        Err(trace.fail(end, what))
    }

    fn agree(
        &self,
        step: &Step,
        got: &Outcome,
        want: &Outcome,
        model: &ModelFs,
        oracle: &Session<'_>,
    ) -> bool {
        if got == want {
            return true;
        }
        let Op::Seek { at, offset, whence } = &step.op else { return false };
        let (Outcome::Offset(got), false) = (got, self.exact_seek) else { return false };
        let Ok(ino) = oracle.resolve(at) else { return false };
        let Ok(attr) = model.getattr(ino) else { return false };
        match whence {
            // Claimed where none was written: before the first that was, and inside the file.
            Whence::Data => {
                let first = match want {
                    Outcome::Offset(first) => *first,
                    Outcome::Error(Errno::NXIO) => attr.size.saturating_sub(1),
                    _ => return false,
                };
                (*offset..=first).contains(got)
            }
            // A later hole is a real one, or the end.
            Whence::Hole => {
                let real =
                    *got == attr.size || model.seek(ino, *got, Whence::Hole).is_ok_and(|at| at == *got);
                *got >= *offset && real
            }
        }
    }

    fn compare_trees(&self, pair: &Pair<'_>) -> Result<(), String> {
        let got = tree(pair.fs, pair.top).map_err(|error| format!("the engine's tree: {error}"))?;
        let want = tree(pair.model, pair.model_top).map_err(|error| format!("the model's tree: {error}"))?;
        let found = got.diff(&want, self.compare);
        if found.is_empty() {
            return Ok(());
        }
        let shown: Vec<_> = found.iter().take(20).map(String::as_str).collect();
        Err(format!("the trees differ in {} places:\n  {}", found.len(), shown.join("\n  ")))
    }

    /// Takes steps away from a failing trace while it still fails, on a fresh engine each time.
    /// Runs at most `budget` traces.
    #[must_use]
    pub fn minimise(
        &self,
        fresh: &mut dyn FnMut() -> Box<dyn FileSystem>,
        failure: &Failure,
        budget: usize,
    ) -> Failure {
        let mut best = failure.clone();
        let mut left = budget;
        let mut chunk = best.steps.len().div_ceil(2);
        while chunk > 0 && left > 0 {
            let mut end = best.steps.len();
            while end > 0 && left > 0 {
                let start = end.saturating_sub(chunk);
                let shorter: Vec<_> = [&best.steps[..start], &best.steps[end..]].concat();
                left -= 1;
                if let Err(failure) = self.replay(&*fresh(), &shorter) {
                    best = *failure;
                }
                end = start.min(best.steps.len());
            }
            chunk /= 2;
        }
        best
    }
}

/// An engine and the model, and the top directory of the run on each.
struct Pair<'a> {
    fs: &'a dyn FileSystem,
    top: Ino,
    model: &'a ModelFs,
    model_top: Ino,
}

/// A run's steps.
struct Trace<'a> {
    check: &'a Check,
    steps: &'a [Step],
    seed: Option<u64>,
}

impl Trace<'_> {
    /// A failure at a step.
    fn fail(&self, index: usize, what: String) -> Box<Failure> {
        let index = index.min(self.steps.len().saturating_sub(1));
        let steps = self.steps[..self.steps.len().min(index + 1)].to_vec();
        Box::new(Failure { seed: self.seed, index, steps, what })
    }

    fn make_top(&self, fs: &dyn FileSystem) -> Result<Ino, Box<Failure>> {
        let cx = Context { uid: 0, gid: 0, now: moment(0) };
        let made = fs.create(&cx, fs.root(), TOP, Node::Directory, 0o755);
        made.map(|attr| attr.ino).map_err(|error| self.fail(0, format!("the top directory: {error:?}")))
    }

    /// Runs some of the steps on both and closes what they opened.
    fn play(&self, pair: &Pair<'_>, range: Range<usize>) -> Result<(), Box<Failure>> {
        let check = self.check;
        let mut engine = Session::new(pair.fs, pair.top, check.compare);
        let mut oracle = Session::new(pair.model, pair.model_top, check.compare);
        for index in range.clone() {
            let step = &self.steps[index];
            let got = engine.run(step);
            let want = oracle.run(step);
            if !check.agree(step, &got, &want, pair.model, &oracle) {
                return Err(self.fail(index, format!("{step}\n  engine: {got:?}\n  model:  {want:?}")));
            }
            if check.tree_every != 0 && (index + 1) % check.tree_every == 0 {
                check.compare_trees(pair).map_err(|what| self.fail(index, what))?;
            }
        }
        check.compare_trees(pair).map_err(|what| self.fail(range.end.saturating_sub(1), what))?;
        engine.close_all();
        oracle.close_all();
        Ok(())
    }
}

/// Removes the run's directory and everything in it.
fn remove_all(fs: &dyn FileSystem, top: Ino) -> onggi_vfs::Result<()> {
    let cx = Context { uid: 0, gid: 0, now: moment(1 << 30) };
    let mut stack = vec![(fs.root(), TOP.to_vec(), top)];
    while let Some((parent, name, dir)) = stack.last().cloned() {
        let mut below = None;
        for entry in fs.readdir(dir, 0, usize::from(u16::MAX))? {
            match (entry.name.as_slice(), entry.kind) {
                (b"." | b"..", _) => {}
                (_, onggi_vfs::FileKind::Directory) => below = Some((dir, entry.name, entry.ino)),
                _ => fs.unlink(&cx, dir, &entry.name)?,
            }
        }
        match below {
            Some(next) => stack.push(next),
            None => {
                fs.rmdir(&cx, parent, &name)?;
                stack.pop();
            }
        }
    }
    Ok(())
}
