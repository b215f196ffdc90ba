//! Runs cases where neither a panic, nor a hang, nor unbounded memory goes unseen.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

/// Longest time of one step, on a machine that does other work too.
const LIMIT: Duration = Duration::from_secs(5);
/// Resident memory that a step adds at most.
const RESIDENT: u64 = 256 << 20;
/// Address space that a step adds at most: catches what is asked for and never touched.
const ADDRESSES: u64 = 1 << 30;
/// Failures shown; the rest is only counted.
const SHOWN: usize = 40;

/// One hostile image and what is done with it.
pub(crate) struct Case {
    pub label: String,
    pub work: Box<dyn FnOnce(&mut Watched) + Send>,
}

/// What a worker does just now.
#[derive(Default)]
struct Now {
    step: Option<(String, Instant)>,
    idle: bool,
}

/// A case as it runs.
pub(crate) struct Watched {
    label: String,
    now: Arc<Mutex<Now>>,
    failures: Arc<Mutex<Failures>>,
}

#[derive(Default)]
struct Failures {
    /// By what happened, without the case: how often, and the first case.
    by_kind: BTreeMap<String, (u64, String)>,
    slowest: (Duration, String),
    steps: u64,
}

thread_local! {
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

impl Watched {
    /// Names the case once more is known of it.
    pub(crate) fn name(&mut self, more: &str) {
        self.label.push_str(more);
    }

    /// Does one step. `None` when it panicked.
    pub(crate) fn step<T>(&mut self, name: &str, work: impl FnOnce(&mut Self) -> T) -> Option<T> {
        reset_peak();
        let (started, before) = (Instant::now(), (memory("VmRSS"), memory("VmPeak")));
        self.now.lock().unwrap().step = Some((format!("{}: {name}", self.label), started));
        let result = catch_unwind(AssertUnwindSafe(|| work(self)));
        self.now.lock().unwrap().step = None;
        let took = started.elapsed();
        let mut failures = self.failures.lock().unwrap();
        failures.steps += 1;
        if took > failures.slowest.0 {
            failures.slowest = (took, format!("{}: {name}", self.label));
        }
        drop(failures);
        if took > LIMIT {
            self.fail(format!("{name} takes more than {LIMIT:?}"), format!("{took:?}"));
        }
        let grown = |line, before: u64| memory(line).saturating_sub(before);
        let (resident, addresses) = (grown("VmHWM", before.0), grown("VmPeak", before.1));
        if resident > RESIDENT || addresses > ADDRESSES {
            let more = format!("{} MiB resident, {} MiB of addresses", resident >> 20, addresses >> 20);
            self.fail(format!("{name} takes too much memory"), more);
        }
        match result {
            Ok(result) => Some(result),
            Err(_) => {
                let text = PANIC.with(|text| std::mem::take(&mut *text.borrow_mut()));
                self.fail(format!("{name} panics: {text}"), String::new());
                None
            }
        }
    }

    /// Something that must not happen; `kind` does not name the case, `more` may.
    pub(crate) fn fail(&self, kind: String, more: String) {
        let mut failures = self.failures.lock().unwrap();
        let entry =
            failures.by_kind.entry(kind).or_insert_with(|| (0, format!("{}\n      {more}", self.label)));
        entry.0 += 1;
    }
}

/// Runs all cases; fails with a list of what went wrong, one case each.
pub(crate) fn run(cases: Vec<Case>) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    hear_panics();
    let count = cases.len();
    let failures = Arc::new(Mutex::new(Failures::default()));
    // One worker: the process's memory is that of its case.
    let slot = Arc::new(Mutex::new(Now::default()));
    let (worker, noted) = (Arc::clone(&slot), Arc::clone(&failures));
    std::thread::spawn(move || {
        for case in cases {
            let (now, failures) = (Arc::clone(&worker), Arc::clone(&noted));
            let mut watched = Watched { label: case.label, now, failures };
            let done = catch_unwind(AssertUnwindSafe(|| (case.work)(&mut watched)));
            if done.is_err() {
                let text = PANIC.with(|text| std::mem::take(&mut *text.borrow_mut()));
                watched.fail(format!("panic: {text}"), String::new());
            }
        }
        worker.lock().unwrap().idle = true;
    });
    let hang = watch(&slot);
    report(count, hang.as_deref(), &failures.lock().unwrap());
}

/// Waits for the worker; the step that hangs, if one does.
fn watch(slot: &Mutex<Now>) -> Option<String> {
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let now = slot.lock().unwrap();
        match &now.step {
            // Slow steps fail by themselves; past this the step is taken to be without an end.
            Some((step, since)) if since.elapsed() > LIMIT * 4 => return Some(step.clone()),
            _ if now.idle => return None,
            _ => {}
        }
    }
}

fn report(count: usize, hang: Option<&str>, failures: &Failures) {
    println!(
        "{count} cases, {} steps; slowest {:?} ({})",
        failures.steps, failures.slowest.0, failures.slowest.1
    );
    let mut text = String::new();
    for (kind, (times, first)) in failures.by_kind.iter().take(SHOWN) {
        text.push_str(&format!("\n  {times} x {kind}\n    first: {first}"));
    }
    if let Some(step) = hang {
        text.push_str(&format!("\n  hangs: {step}"));
    }
    assert!(text.is_empty(), "{} kinds of failures:{text}", failures.by_kind.len());
}

/// Keeps a panic's text and place for its case, instead of printing it.
fn hear_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name().is_some() {
                return usual(info);
            }
            let text = info.payload_as_str().unwrap_or("?").to_string();
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            if std::env::var_os("ONGGI_BACKTRACE").is_some() {
                eprintln!("{text} at {place}\n{}", std::backtrace::Backtrace::force_capture());
            }
            PANIC.with(|slot| *slot.borrow_mut() = format!("{text} at {place}"));
        }));
    });
}

/// The peak becomes what is resident now.
fn reset_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// A line of /proc/self/status, in bytes; 0 where there is none.
fn memory(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let found = status.lines().find_map(|text| text.strip_prefix(line)?.strip_prefix(':'));
    let kib = found.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
