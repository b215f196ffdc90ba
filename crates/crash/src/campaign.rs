//! A run, its power cuts, and the verdict on each.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use onggi_block_device::BlockDevice;
use onggi_fault_device::{Bounds, CrashPoint, Explorer, Recorder, Snapshot, Survivors, crash_points};
use onggi_model::{Compare, Profile, Random, Step, Tree, dense_steps, moment, seed_or, tree};
use onggi_vfs::{Context, FileSystem, Node};

use crate::failure::{Cut, Failure};
use crate::history::{History, TOP};
use crate::oracle::Oracle;
use crate::stale::StaleDevice;
use crate::{Engine, Found};

/// How a campaign is run.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// What is done before the power is cut.
    pub profile: Profile,
    /// The device's atomic unit in bytes, 512 or 4096.
    pub physical_sector: u32,
    /// Whether the device does FUA.
    pub fua: bool,
    /// What is enumerated at one position.
    pub bounds: Bounds,
    /// The power is cut again during the recovery of one in so many states; 0 for never.
    pub nested_every: u64,
    /// One in so many recovered volumes is unmounted, mounted again and compared; 0 for never.
    pub reopen_every: u64,
}

/// What a campaign looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Operations run.
    pub steps: usize,
    /// Calls for durability acknowledged, the unmount included.
    pub acknowledged: usize,
    /// Events on the device.
    pub events: usize,
    /// Positions of power cuts.
    pub positions: usize,
    /// Device states recovered and judged, those of `nested` included.
    pub states: usize,
    /// Of these, states of a power cut during recovery.
    pub nested: usize,
}

/// Runs `steps` operations that `seed` fixes and judges `states` device states that power cuts leave.
/// `ONGGI_SEED` overrides the seed.
///
/// # Errors
/// The first promise that was not kept.
pub fn campaign(engine: &dyn Engine, seed: u64, steps: usize, states: usize) -> Result<Report, Box<Failure>> {
    Campaign::new(Profile::crash(engine.limits())).run(engine, seed_or(seed), steps, states)
}

/// A campaign under way.
struct Run<'a> {
    engine: &'a dyn Engine,
    campaign: &'a Campaign,
    oracle: Oracle<'a>,
    random: Random,
    report: Report,
    budget: usize,
}

impl Campaign {
    /// With 512-byte sectors, FUA, the fault device's own bounds, and recoveries cut off too.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            physical_sector: 512,
            fua: true,
            bounds: Bounds::default(),
            nested_every: 8,
            reopen_every: 4,
        }
    }

    /// As [`campaign`].
    ///
    /// # Errors
    /// The first promise that was not kept.
    pub fn run(
        &self,
        engine: &dyn Engine,
        seed: u64,
        steps: usize,
        states: usize,
    ) -> Result<Report, Box<Failure>> {
        let steps = dense_steps(seed, self.profile, steps);
        self.run_steps(engine, &steps, seed, states)
    }

    /// Runs these steps; `seed` picks the cuts.
    ///
    /// # Errors
    /// The first promise that was not kept.
    pub fn run_steps(
        &self,
        engine: &dyn Engine,
        steps: &[Step],
        seed: u64,
        states: usize,
    ) -> Result<Report, Box<Failure>> {
        let failure = |begun: Option<usize>, what: String| {
            let (steps, cuts) = (steps.to_vec(), Vec::new());
            Box::new(Failure { seed, states, steps, cuts, begun, acknowledged: Vec::new(), what })
        };
        let stale = StaleDevice::new(engine.size(), self.physical_sector, self.fua);
        let base = Snapshot::over(Arc::new(stale));
        guarded(|| engine.mkfs(&base)).map_err(|what| failure(None, format!("mkfs: {what}")))?;
        let base: Arc<dyn BlockDevice> = Arc::new(base);
        let history = catch_unwind(AssertUnwindSafe(|| History::record(engine, &base, steps)))
            .unwrap_or_else(|panic| Err((steps.len(), panic_text(&*panic))))
            .map_err(|(done, what)| failure(done.checked_sub(1), what))?;
        let mut run = Run {
            engine,
            campaign: self,
            oracle: Oracle::new(&history, engine.promise(), self.physical_sector, engine.limits().block_size),
            random: Random::new(seed ^ 0x0063_7574),
            report: Report {
                steps: steps.len(),
                acknowledged: history.acks.len(),
                events: history.log.len(),
                ..Report::default()
            },
            budget: states,
        };
        run.explore(&base, &history).map_err(|(cuts, what)| {
            let position = cuts.first().map_or(0, |cut| cut.position);
            let mut failure = failure(history.latest(position).checked_sub(1), what);
            failure.acknowledged = history.acks_at(position).map(|ack| ack.step).collect();
            failure.cuts = cuts;
            failure
        })?;
        Ok(run.report)
    }

    /// Takes steps away from a failing run while it still fails; runs at most `budget` campaigns.
    #[must_use]
    pub fn minimise(&self, engine: &dyn Engine, failure: &Failure, budget: usize) -> Failure {
        let mut best = failure.clone();
        let mut left = budget;
        let mut chunk = best.steps.len().div_ceil(2);
        while chunk > 0 && left > 0 {
            let mut end = best.steps.len();
            while end > 0 && left > 0 {
                let start = end.saturating_sub(chunk);
                let shorter = [&best.steps[..start], &best.steps[end..]].concat();
                left -= 1;
                if let Err(failure) = self.run_steps(engine, &shorter, failure.seed, failure.states) {
                    best = *failure;
                }
                end = start.min(best.steps.len());
            }
            chunk /= 2;
        }
        best
    }
}

type Verdict = Result<(), (Vec<Cut>, String)>;

impl Run<'_> {
    /// Cuts the power at positions all over the log, in order.
    fn explore(&mut self, base: &Arc<dyn BlockDevice>, history: &History) -> Verdict {
        let mut points = crash_points(&history.log);
        // Besides those that show every state, some at which fewer operations had begun.
        for _ in 0..points.len() / 8 {
            points.push(self.random.below(history.log.len() as u64 + 1) as usize);
        }
        points.retain(|&point| point >= history.start);
        points.sort_unstable();
        points.dedup();
        while points.len() > self.budget.max(1) {
            let victim = self.random.below(points.len() as u64 - 1) as usize;
            points.remove(victim);
        }
        let mut explorer = Explorer::new(Arc::clone(base), history.log.clone());
        let count = points.len();
        for (nth, position) in points.into_iter().enumerate() {
            let point = explorer.at(position).map_err(|error| (Vec::new(), error.to_string()))?;
            let quota = (self.budget - self.report.states.min(self.budget)) / (count - nth);
            self.report.positions += 1;
            for survivors in self.choose(&point, quota.max(1)) {
                let image = point.image(&survivors).map_err(|error| (Vec::new(), error.to_string()))?;
                let cut = Cut { position, survivors };
                self.judge(image, vec![cut])?;
            }
        }
        Ok(())
    }

    /// Some plans of a point: none and all among them, and at random from the rest.
    fn choose(&mut self, point: &CrashPoint, count: usize) -> Vec<Survivors> {
        let bounds = Bounds { seed: self.random.next_u64(), ..self.campaign.bounds };
        let mut plans: Vec<_> = point.plans(bounds).collect();
        if plans.len() > count {
            for chosen in 0..count {
                let other = chosen + self.random.below((plans.len() - chosen) as u64) as usize;
                plans.swap(chosen, other);
            }
            plans.truncate(count);
            if count > 2 {
                plans[0] = Survivors::None;
                plans[1] = Survivors::All;
            }
        }
        plans
    }

    /// Recovers one image and judges what came back, now and then after cutting the recovery off.
    fn judge(&mut self, image: Snapshot, cuts: Vec<Cut>) -> Verdict {
        let every = |random: &mut Random, n: u64| n != 0 && random.below(n) == 0;
        let nested = cuts.len() == 1 && every(&mut self.random, self.campaign.nested_every);
        let reopen = every(&mut self.random, self.campaign.reopen_every);
        let position = cuts.first().map_or(0, |cut| cut.position);
        self.report.states += 1;
        self.report.nested += usize::from(cuts.len() > 1);
        let image: Arc<Snapshot> = Arc::new(image);
        let fork = || Arc::new(image.fork());
        let verdict = guarded(|| {
            self.engine
                .check(fork(), Found::AfterCut)
                .map_err(|what| format!("check after the cut: {what}"))?;
            let device = fork();
            let fs =
                self.engine.mount(device.clone()).map_err(|what| format!("mount after the cut: {what}"))?;
            let found = take_tree(&*fs)?;
            self.oracle.judge(position, &found)?;
            use_volume(&*fs).map_err(|error| format!("using the recovered volume: {error:?}"))?;
            fs.unmount().map_err(|error| format!("unmount after recovery: {error:?}"))?;
            drop(fs);
            let unmounted = Arc::new(device.fork());
            self.engine
                .check(unmounted, Found::AfterUnmount)
                .map_err(|what| format!("check after recovery and unmount: {what}"))?;
            if reopen { self.reopen(device, &found) } else { Ok(()) }
        });
        verdict.map_err(|what| (cuts.clone(), what))?;
        if nested { self.cut_recovery(&image, &cuts) } else { Ok(()) }
    }

    /// What was recovered once is there the next time.
    fn reopen(&self, device: Arc<Snapshot>, found: &Tree) -> Result<(), String> {
        let fs = self.engine.mount(device).map_err(|what| format!("the second mount: {what}"))?;
        let again = take_tree(&*fs)?;
        let differs = again.diff(found, Compare::ALL);
        if differs.is_empty() {
            return fs.unmount().map_err(|error| format!("the second unmount: {error:?}"));
        }
        let shown = differs[..differs.len().min(10)].join("\n  ");
        Err(format!("unmounted and mounted again after recovery, it differs:\n  {shown}"))
    }

    /// Cuts the power at a few places of this image's recovery.
    fn cut_recovery(&mut self, image: &Arc<Snapshot>, cuts: &[Cut]) -> Verdict {
        let recorder = Arc::new(Recorder::new(image.fork()));
        let mounted = guarded(|| self.engine.mount(recorder.clone()).map(drop));
        mounted.map_err(|what| (cuts.to_vec(), format!("the same mount again: {what}")))?;
        let log = recorder.log();
        let points = crash_points(&log);
        for _ in 0..3 {
            let position = *self.random.pick(&points);
            let point = CrashPoint::new(image.clone(), &log, position);
            let point = point.map_err(|error| (cuts.to_vec(), error.to_string()))?;
            for survivors in self.choose(&point, 1) {
                let image = point.image(&survivors).map_err(|error| (cuts.to_vec(), error.to_string()))?;
                let mut cuts = cuts.to_vec();
                cuts.push(Cut { position, survivors });
                self.judge(image, cuts)?;
            }
        }
        Ok(())
    }
}

fn take_tree(fs: &dyn FileSystem) -> Result<Tree, String> {
    let top = fs.lookup(fs.root(), TOP).map_err(|error| format!("the top directory: {error:?}"))?;
    tree(fs, top.ino).map_err(|error| format!("the recovered tree: {error}"))
}

/// A recovered volume is one like any other.
fn use_volume(fs: &dyn FileSystem) -> onggi_vfs::Result<()> {
    let cx = Context { uid: 0, gid: 0, now: moment(1 << 20) };
    let name = b"after-the-cut";
    let file = fs.create(&cx, fs.root(), name, Node::Regular, 0o600)?.ino;
    let data = onggi_model::pattern(1, 0, 10_000);
    let mut back = vec![0; data.len()];
    if fs.write(&cx, file, 0, &data)? != data.len() {
        return Err(onggi_vfs::Errno::NOSPC.into());
    }
    fs.fsync(file, false)?;
    if fs.read(&cx, file, 0, &mut back)? != data.len() || back != data {
        return Err(onggi_vfs::Errno::IO.into());
    }
    fs.unlink(&cx, fs.root(), name)
}

/// Turns a panic into an error.
fn guarded<T>(body: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(panic_text(&*panic)))
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("the engine panicked: {}", text.unwrap_or("without a word"))
}
