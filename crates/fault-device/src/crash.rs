//! The states that a power cut may leave.
//!
//! A request is *durable* once it completed with FUA, or completed before a flush was submitted that
//! has completed since. Every other submitted request is *open*: any subset of the open ones may have
//! taken effect, each on any subset of its sectors. A request submitted after another completed takes
//! effect after it; two in flight together take effect in either order.

use std::collections::HashMap;
use std::sync::Arc;

use onggi_block_device::{BlockDevice, ByteRange, DeviceError};

use crate::prng::Prng;
use crate::record::{Event, Request};
use crate::snapshot::Snapshot;

/// Which open requests took effect. Open requests count from 0 in the order of submission.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Survivors {
    /// Every one.
    All,
    /// Not one.
    None,
    /// Every one but this.
    AllButOne(usize),
    /// This one alone.
    OnlyOne(usize),
    /// The first so many.
    Prefix(usize),
    /// The last so many; those in flight together take effect in the reverse order of submission.
    ReversedPrefix(usize),
    /// Those whose bit is set, of at most 64.
    Subset(u64),
    /// A random subset of the sectors of each, in a random order that the log allows.
    Random {
        /// Says which.
        seed: u64,
    },
}

/// How many states of one crash point are enumerated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// All subsets of whole requests when no more than this many are open (at most 20), else the named
    /// plans.
    pub exhaustive: u32,
    /// Random plans besides, with torn requests.
    pub random: u32,
    /// Seed of the first random plan; the others follow from it.
    pub seed: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { exhaustive: 12, random: 64, seed: 0 }
    }
}

/// A change of the device and how far it has come.
#[derive(Clone)]
struct Change {
    id: u64,
    request: Request,
    submitted: usize,
    completed: Option<usize>,
    ok: bool,
    durable: bool,
}

impl Change {
    fn key(&self) -> (usize, usize) {
        (self.completed.unwrap_or(usize::MAX), self.submitted)
    }
}

/// Walks a log forward and gives the crash states of each position.
pub struct Explorer {
    events: Arc<[Event]>,
    position: usize,
    /// The base with every durable change that nothing open can come before.
    settled: Arc<Snapshot>,
    /// The other changes, in the order of submission.
    live: Vec<Change>,
    /// Position at which each flush in flight was submitted.
    flushes: HashMap<u64, usize>,
}

impl Explorer {
    /// Before the first event. `base` is what the device held then; nobody changes it any more.
    pub fn new(base: Arc<dyn BlockDevice>, log: impl Into<Arc<[Event]>>) -> Self {
        Self {
            events: log.into(),
            position: 0,
            settled: Arc::new(Snapshot::over(base)),
            live: Vec::new(),
            flushes: HashMap::new(),
        }
    }

    /// Events behind it.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// The log.
    #[must_use]
    pub fn log(&self) -> &[Event] {
        &self.events
    }

    /// Walks to `position` and gives what a power cut there leaves.
    ///
    /// # Errors
    /// The base's, when it cannot be read.
    ///
    /// # Panics
    /// When `position` lies behind or past the end of the log.
    pub fn at(&mut self, position: usize) -> Result<CrashPoint, DeviceError> {
        assert!(position >= self.position, "position {position} lies behind {}", self.position);
        while self.position < position {
            self.step()?;
        }
        let open = (0..self.live.len()).filter(|&i| !self.live[i].durable).collect();
        Ok(CrashPoint { position, settled: Arc::clone(&self.settled), live: self.live.clone(), open })
    }

    fn step(&mut self) -> Result<(), DeviceError> {
        let (events, here) = (Arc::clone(&self.events), self.position);
        self.position += 1;
        match &events[here] {
            Event::Mark(_) => Ok(()),
            Event::Submitted { id, request: Request::Flush } => {
                self.flushes.insert(*id, here);
                Ok(())
            }
            Event::Submitted { id, request } => {
                let request = request.clone();
                let (completed, ok, durable) = (None, false, false);
                self.live.push(Change { id: *id, request, submitted: here, completed, ok, durable });
                Ok(())
            }
            Event::Completed { id, ok } => self.complete(*id, *ok, here),
        }
    }

    fn complete(&mut self, id: u64, ok: bool, here: usize) -> Result<(), DeviceError> {
        if let Some(submitted) = self.flushes.remove(&id) {
            if !ok {
                return Ok(());
            }
            for change in &mut self.live {
                change.durable |= change.ok && change.completed.is_some_and(|at| at < submitted);
            }
        } else if let Some(change) = self.live.iter_mut().rev().find(|change| change.id == id) {
            change.completed = Some(here);
            change.ok = ok;
            change.durable = ok && matches!(change.request, Request::Write { fua: true, .. });
            if !change.durable {
                return Ok(());
            }
        }
        self.settle()
    }

    /// Moves to the settled image what no open request can take effect before.
    fn settle(&mut self) -> Result<(), DeviceError> {
        let horizon = self.live.iter().filter(|change| !change.durable).map(|change| change.submitted).min();
        let horizon = horizon.unwrap_or(usize::MAX);
        let live = std::mem::take(&mut self.live);
        let (mut settled, live): (Vec<_>, Vec<_>) =
            live.into_iter().partition(|change| change.durable && change.key().0 < horizon);
        self.live = live;
        if settled.is_empty() {
            return Ok(());
        }
        settled.sort_by_key(Change::key);
        if Arc::get_mut(&mut self.settled).is_none() {
            self.settled = Arc::new(self.settled.fork());
        }
        settled.iter().try_for_each(|change| take_effect(&self.settled, &change.request))
    }
}

fn take_effect(image: &Snapshot, request: &Request) -> Result<(), DeviceError> {
    match request {
        Request::Write { offset, data, .. } => image.put(*offset, data),
        Request::Discard(range) => image.forget(*range),
        Request::WriteZeroes(range) => image.zero(*range),
        Request::Flush => Ok(()),
    }
}

/// Lets `request` take effect on the units of `unit` bytes that `survives` picks.
fn take_effect_torn(
    image: &Snapshot,
    request: &Request,
    unit: u64,
    mut survives: impl FnMut() -> bool,
) -> Result<(), DeviceError> {
    let whole = request.range();
    let end = whole.offset + whole.len;
    let mut at = whole.offset;
    while at < end {
        let stop = end.min((at / unit + 1) * unit);
        if survives() {
            let range = ByteRange { offset: at, len: stop - at };
            match request {
                Request::Write { data, .. } => {
                    let (from, to) = ((at - whole.offset) as usize, (stop - whole.offset) as usize);
                    image.put(at, &data[from..to])?;
                }
                Request::Discard(_) => image.forget(range)?,
                Request::WriteZeroes(_) => image.zero(range)?,
                Request::Flush => {}
            }
        }
        at = stop;
    }
    Ok(())
}

/// One position of a log and every state a power cut leaves there.
#[derive(Clone)]
pub struct CrashPoint {
    position: usize,
    settled: Arc<Snapshot>,
    live: Vec<Change>,
    /// Indices of `live` that are open.
    open: Vec<usize>,
}

impl CrashPoint {
    /// The point at `position` of `log`; for many points of one log [`Explorer`] is faster.
    ///
    /// # Errors
    /// The base's, when it cannot be read.
    ///
    /// # Panics
    /// When `position` lies past the end of the log.
    pub fn new(base: Arc<dyn BlockDevice>, log: &[Event], position: usize) -> Result<Self, DeviceError> {
        Explorer::new(base, &log[..position]).at(position)
    }

    /// Events before the power cut.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }

    /// Requests that may or may not have taken effect.
    #[must_use]
    pub fn open(&self) -> usize {
        self.open.len()
    }

    /// The plans to look at: all subsets of whole requests or, where those are too many, all, none,
    /// all but one, only one, prefixes and reversed prefixes; then random ones.
    pub fn plans(&self, bounds: Bounds) -> impl Iterator<Item = Survivors> + use<> {
        let open = self.open.len();
        let exhaustive = open <= bounds.exhaustive.min(20) as usize;
        let subsets = if exhaustive { 1 << open } else { 0 };
        let singles = if exhaustive { 0 } else { open };
        // A prefix of none or of all is named already; reversed, all of them is an order of its own.
        let reversed = if self.reorders() { 1..open + 1 } else { 2..open.max(2) };
        let reversed = if exhaustive && !self.reorders() { 0..0 } else { reversed };
        let random = if open == 0 { 0 } else { u64::from(bounds.random) };
        let named = if exhaustive { vec![] } else { vec![Survivors::All, Survivors::None] };
        let mut seeds = Prng::new(bounds.seed);
        (0..subsets)
            .map(Survivors::Subset)
            .chain(named)
            .chain((0..singles).map(Survivors::AllButOne))
            .chain((0..singles).map(Survivors::OnlyOne))
            .chain((2..singles.saturating_sub(1)).map(Survivors::Prefix))
            .chain(reversed.map(Survivors::ReversedPrefix))
            .chain((0..random).map(move |_| Survivors::Random { seed: seeds.bits() }))
    }

    /// The device after a power cut that spared `survivors`.
    ///
    /// # Errors
    /// The base's, when it cannot be read.
    pub fn image(&self, survivors: &Survivors) -> Result<Snapshot, DeviceError> {
        let image = Snapshot::over(Arc::clone(&self.settled) as Arc<dyn BlockDevice>);
        if let Survivors::Random { seed } = survivors {
            self.tear(&image, *seed)?;
            return Ok(image);
        }
        let count = self.open.len();
        let mut alive = vec![true; self.live.len()];
        for (nth, &index) in self.open.iter().enumerate() {
            alive[index] = match *survivors {
                Survivors::All | Survivors::Random { .. } => true,
                Survivors::None => false,
                Survivors::AllButOne(one) => nth != one,
                Survivors::OnlyOne(one) => nth == one,
                Survivors::Prefix(first) => nth < first,
                Survivors::ReversedPrefix(last) => nth + last >= count,
                Survivors::Subset(bits) => nth < 64 && bits >> nth & 1 == 1,
            };
        }
        let order = match survivors {
            Survivors::ReversedPrefix(_) => self.reversed_order(),
            _ => self.completion_order(),
        };
        for index in order.into_iter().filter(|&index| alive[index]) {
            take_effect(&image, &self.live[index].request)?;
        }
        Ok(image)
    }

    fn completion_order(&self) -> Vec<usize> {
        let mut order: Vec<_> = (0..self.live.len()).collect();
        order.sort_by_key(|&index| self.live[index].key());
        order
    }

    /// Reverses each run of requests that were all in flight together.
    fn reversed_order(&self) -> Vec<usize> {
        let mut order: Vec<_> = (0..self.live.len()).collect();
        let mut start = 0;
        let mut first_done = usize::MAX;
        for index in 0..=self.live.len() {
            let together = self.live.get(index).is_some_and(|change| change.submitted < first_done);
            if index > start && !together {
                order[start..index].reverse();
                start = index;
                first_done = usize::MAX;
            }
            if let Some(change) = self.live.get(index) {
                first_done = first_done.min(change.key().0);
            }
        }
        order
    }

    /// Whether the order of requests in flight together can matter: two touch a common byte.
    fn reorders(&self) -> bool {
        let mut ranges: Vec<_> = self.live.iter().map(|change| change.request.range()).collect();
        ranges.sort_by_key(|range| range.offset);
        let mut reach = 0;
        ranges.into_iter().filter(|range| range.len > 0).any(|range| {
            let meets = range.offset < reach;
            reach = reach.max(range.offset + range.len);
            meets
        })
    }

    fn tear(&self, image: &Snapshot, seed: u64) -> Result<(), DeviceError> {
        let mut prng = Prng::new(seed);
        let attributes = image.attributes();
        let unit = u64::from(attributes.physical_sector.max(attributes.logical_sector));
        // Each request takes effect at some instant between its submission and its completion.
        let mut order: Vec<_> = self
            .live
            .iter()
            .enumerate()
            .map(|(index, change)| {
                let end = change.completed.unwrap_or(self.position);
                let instant = change.submitted as u64 + prng.below((end - change.submitted) as u64);
                (instant, prng.bits(), index)
            })
            .collect();
        order.sort_unstable();
        // How likely a request is lost, whole or torn differs from plan to plan, in sixteenths.
        let lost = prng.below(13);
        let torn = prng.below(17 - lost);
        for (_, _, index) in order {
            let change = &self.live[index];
            let fate = if change.durable { 16 } else { prng.below(16) };
            if fate >= lost + torn {
                take_effect(image, &change.request)?;
            } else if fate >= lost {
                let density = 1 + prng.below(7);
                take_effect_torn(image, &change.request, unit, || prng.chance(density, 8))?;
            }
        }
        Ok(())
    }
}

/// The positions that between them show every state: right before each event that makes something
/// durable, and the end. A state possible elsewhere is possible at the next of these.
#[must_use]
pub fn crash_points(log: &[Event]) -> Vec<usize> {
    let mut promises = std::collections::HashSet::new();
    let mut points = Vec::new();
    for (position, event) in log.iter().enumerate() {
        match event {
            Event::Submitted { id, request: Request::Flush | Request::Write { fua: true, .. } } => {
                promises.insert(*id);
            }
            Event::Completed { id, ok: true } if promises.contains(id) => points.push(position),
            _ => {}
        }
    }
    points.push(log.len());
    points
}
