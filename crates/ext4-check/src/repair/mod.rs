//! Repair: look, change, look again, until nothing more can be done.

mod apply;
mod counts;
mod directory;
mod truncate;

use onggi_block_device::BlockDevice;
use onggi_disk_format::ext4::superblock::{STATE_ERROR, STATE_ORPHANS, STATE_VALID};
use onggi_disk_format::ext4::{Incompat, RoCompat};

use crate::analysis::{Outcome, analyse};
use crate::fix::Fix;
use crate::report::Report;
use crate::volume::Volume;
use crate::{CheckError, Mode, Pass, Progress};

/// Looks at most; a repair that needs more has no end.
const ROUNDS: u32 = 12;

/// Checks and repairs the volume; its journal has been replayed.
pub(crate) fn repair(
    device: &dyn BlockDevice,
    mode: Mode,
    mut report: Report,
    progress: &dyn Fn(Progress),
) -> Result<Report, CheckError> {
    let mut volume = Volume::open(device)?;
    let first = analyse(&volume, progress)?;
    report.problems.clone_from(&first.problems.kept);
    report.more_problems = first.problems.more;
    let mut last = first;
    if !last.orphans.is_empty() {
        let orphans = apply::release_orphans(&mut volume, &last)?;
        report.modified |= orphans;
        last = analyse(&volume, progress)?;
        // What the orphans leave behind is no fault of the volume.
        report.modified |= settle(&mut volume, mode, &mut last, progress)?;
    } else if !last.problems.kept.is_empty() {
        report.modified |= settle(&mut volume, mode, &mut last, progress)?;
    }
    merge(&mut report, &last);
    report.stats = last.stats;
    report.modified |= finish(&mut volume, &report, &last)?;
    if report.modified {
        device.flush()?;
    }
    Ok(report)
}

/// Repairs round by round. `last` becomes the last look.
fn settle(
    volume: &mut Volume<'_>,
    mode: Mode,
    last: &mut Outcome,
    progress: &dyn Fn(Progress),
) -> Result<bool, CheckError> {
    let mut modified = false;
    for round in 0..ROUNDS {
        let allowed = |fix: &Fix| mode == Mode::Yes || fix.is_safe();
        // Without asking, a volume is only touched when everything can be repaired.
        let repairable = |index: usize| last.fixes.iter().any(|(at, fix)| *at == index && allowed(fix));
        if mode == Mode::Preen && !(0..last.problems.kept.len()).all(repairable) {
            break;
        }
        let fixes: Vec<Fix> =
            last.fixes.iter().map(|(_, fix)| fix.clone()).filter(|fix| allowed(fix)).collect();
        if fixes.is_empty() {
            break;
        }
        progress(Progress { pass: Pass::Repair, done: u64::from(round), total: u64::from(ROUNDS) });
        let mut changed = false;
        for fix in fixes.iter().filter(|fix| **fix != Fix::Counts) {
            changed |= apply::apply(volume, last, fix)?;
        }
        if !changed && fixes.contains(&Fix::Counts) {
            changed = counts::rewrite(volume, last)?;
        }
        if !changed {
            break;
        }
        modified = true;
        *last = analyse(volume, progress)?;
    }
    Ok(modified)
}

/// Marks what is gone as fixed, and adds what is left or new.
fn merge(report: &mut Report, last: &Outcome) {
    for problem in &mut report.problems {
        let same = |left: &&crate::Problem| left.code == problem.code && left.place == problem.place;
        problem.fixed = !last.problems.kept.iter().any(|left| same(&left));
    }
    for left in &last.problems.kept {
        let known = |problem: &&crate::Problem| problem.code == left.code && problem.place == left.place;
        if !report.problems.iter().any(|problem| known(&problem)) {
            report.problems.push(left.clone());
        }
    }
    report.more_problems = last.problems.more;
}

/// Brings the superblock's state in line with the outcome.
fn finish(volume: &mut Volume<'_>, report: &Report, last: &Outcome) -> Result<bool, CheckError> {
    let before = volume.sb.encode();
    let clean = !report.has_unfixed();
    let no_orphans = last.orphans.is_empty();
    let free_blocks: u64 = last.groups.iter().flatten().map(|group| u64::from(group.free_blocks)).sum();
    let free_inodes: u32 = last.groups.iter().flatten().map(|group| group.free_inodes).sum();
    if clean {
        volume.sb.set_free_blocks(free_blocks);
        volume.sb.set_free_inodes(free_inodes);
    }
    let incompat = volume.sb.incompat().without(Incompat::RECOVER);
    let ro_compat = volume.sb.ro_compat().without(RoCompat::ORPHAN_PRESENT);
    let state = volume.sb.state();
    volume.sb.update(|raw| {
        raw.s_feature_incompat.set(incompat.bits());
        if no_orphans {
            raw.s_last_orphan.set(0);
            raw.s_feature_ro_compat.set(ro_compat.bits());
        }
        if clean {
            raw.s_state.set((state | STATE_VALID) & !(STATE_ERROR | STATE_ORPHANS));
        } else {
            raw.s_state.set((state | STATE_ERROR) & !STATE_VALID);
        }
    })?;
    let changed = before != volume.sb.encode();
    if changed {
        volume.write_superblock()?;
    }
    Ok(changed)
}
