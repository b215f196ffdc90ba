//! What went wrong, and how to see it again.

use std::fmt;

use onggi_fault_device::Survivors;
use onggi_model::Step;

/// A power cut: where in a log, and what survived of what was open there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Events before it.
    pub position: usize,
    /// Which open requests took effect.
    pub survivors: Survivors,
}

/// A promise that was not kept.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed of the steps and of the choice of cuts.
    pub seed: u64,
    /// How many states the run was to look at.
    pub states: usize,
    /// Everything that was run.
    pub steps: Vec<Step>,
    /// The cuts one after another: the first of the run, the next of the recovery. None where the run
    /// itself failed.
    pub cuts: Vec<Cut>,
    /// The last operation that had begun at the cut, as an index; none where there was none.
    pub begun: Option<usize>,
    /// Operations that acknowledged something before the cut, as indices.
    pub acknowledged: Vec<usize>,
    /// What does not hold.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}, {} steps, {} states (replay with ONGGI_SEED={})",
            self.seed,
            self.steps.len(),
            self.states,
            self.seed
        )?;
        for (nth, Cut { position, survivors }) in self.cuts.iter().enumerate() {
            let of = if nth == 0 { "the run" } else { "the recovery" };
            writeln!(f, "power cut at event {position} of {of}, survivors {survivors:?}")?;
        }
        writeln!(f, "{}", self.what)?;
        let end = self.begun.map_or(0, |begun| begun + 1);
        writeln!(f, "the operations (* acknowledged as durable, > had begun last):")?;
        for (index, step) in self.steps.iter().enumerate().take(end).skip(end.saturating_sub(60)) {
            let acknowledged = if self.acknowledged.contains(&index) { '*' } else { ' ' };
            let last = if Some(index) == self.begun { '>' } else { ' ' };
            writeln!(f, " {acknowledged}{last} {step}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}
