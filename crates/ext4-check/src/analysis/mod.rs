//! One look at a whole volume: collects what is in use, then compares it with what is written about it.

mod attributes;
mod bitmaps;
mod directories;
mod htree;
mod inodes;
mod layout;
mod links;
pub(crate) mod mapping;
mod orphans;

use std::collections::{BTreeMap, HashSet};

use onggi_disk_format::ext4::{FileType, GroupDescriptor};
use onggi_disk_format::{DiskBlock, GroupNr, InodeNr};

use crate::claims::{Claims, Owner};
use crate::fix::Fix;
use crate::report::{Code, Place, Problem, Problems, Stats};
use crate::volume::Volume;
use crate::{CheckError, Pass, Progress};

use attributes::AttributeBlock;
use directories::Directory;

/// What is known of an inode in use.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) nr: InodeNr,
    pub(crate) kind: FileType,
    /// Stored link count.
    pub(crate) links: u16,
    /// Names found, `.` and `..` included.
    pub(crate) names: u32,
    /// The directory that names this one; 0 for none yet, and for all but directories.
    pub(crate) parent: InodeNr,
    /// Index in the list of directories.
    pub(crate) directory: Option<u32>,
    /// Holds an attribute's value; users found and users stored.
    pub(crate) value: Option<(u64, u64)>,
    /// Its fields broke a rule, so that its kind means little.
    pub(crate) broken: bool,
}

/// Everything that one look collects.
pub(crate) struct Analysis<'a, 'd> {
    pub(crate) volume: &'a Volume<'d>,
    progress: &'a dyn Fn(Progress),
    problems: Problems,
    /// What would repair the problems, in their order.
    pub(crate) fixes: Vec<(usize, Fix)>,
    pub(crate) groups: Vec<Option<GroupDescriptor>>,
    claims: Claims,
    /// By ascending number.
    pub(crate) records: Vec<Record>,
    directories: Vec<Directory>,
    /// Directory blocks with two owners that may still be read: else one block could be read for every
    /// inode there is.
    shared_blocks: u64,
    attribute_blocks: BTreeMap<DiskBlock, AttributeBlock>,
    /// An inode for every attribute whose value lies in one.
    value_users: Vec<InodeNr>,
    pub(crate) orphans: HashSet<InodeNr>,
    stats: Stats,
}

/// What a look hands back.
pub(crate) struct Outcome {
    pub(crate) problems: Problems,
    pub(crate) fixes: Vec<(usize, Fix)>,
    pub(crate) groups: Vec<Option<GroupDescriptor>>,
    pub(crate) records: Vec<Record>,
    pub(crate) orphans: HashSet<InodeNr>,
    pub(crate) claims: Claims,
    pub(crate) stats: Stats,
}

/// Looks at the whole volume.
pub(crate) fn analyse(volume: &Volume<'_>, progress: &dyn Fn(Progress)) -> Result<Outcome, CheckError> {
    let mut analysis = Analysis {
        volume,
        progress,
        problems: Problems::default(),
        fixes: Vec::new(),
        groups: Vec::new(),
        claims: Claims::new(&volume.sb),
        records: Vec::new(),
        directories: Vec::new(),
        shared_blocks: volume.sb.blocks_count(),
        attribute_blocks: BTreeMap::new(),
        value_users: Vec::new(),
        orphans: HashSet::new(),
        stats: Stats::default(),
    };
    analysis.check_layout()?;
    analysis.collect_orphans()?;
    analysis.check_inodes()?;
    analysis.check_attribute_users();
    analysis.check_directories()?;
    analysis.check_links();
    analysis.check_bitmaps()?;
    Ok(Outcome {
        problems: analysis.problems,
        fixes: analysis.fixes,
        groups: analysis.groups,
        records: analysis.records,
        orphans: analysis.orphans,
        claims: analysis.claims,
        stats: analysis.stats,
    })
}

impl Analysis<'_, '_> {
    fn problem(&mut self, code: Code, place: Place, what: impl Into<String>, fix: Option<Fix>) {
        let index = self.problems.kept.len();
        let kept = self.problems.push(Problem { code, place, what: what.into(), fixed: false });
        if let (true, Some(fix)) = (kept, fix) {
            self.fixes.push((index, fix));
        }
    }

    fn progress(&self, pass: Pass, done: u64, total: u64) {
        (self.progress)(Progress { pass, done, total });
    }

    /// Claims blocks and reports those that have an owner already. `false` when there was one.
    fn claim(&mut self, start: DiskBlock, len: u64, owner: Owner, code: Code, place: Place) -> bool {
        let Some(conflict) = self.claims.claim(start, len, owner) else { return true };
        let other = conflict.owner.map_or_else(|| "something else".into(), |owner| owner.to_string());
        let (block, count) = (conflict.block, conflict.count);
        let what = if other == owner.to_string() {
            format!("{owner} claims block {block} twice ({count} such blocks in one run)")
        } else {
            format!("{owner} claims block {block} ({count} such blocks in one run), which belongs to {other}")
        };
        self.problem(code, place, what, None);
        false
    }

    fn find(&self, nr: InodeNr) -> Option<usize> {
        self.records.binary_search_by_key(&nr, |record| record.nr).ok()
    }

    fn group_checksums(&self) -> bool {
        self.volume.sb.has_group_checksums()
    }

    fn all_groups(&self) -> impl Iterator<Item = GroupNr> + use<> {
        (0..self.volume.sb.groups()).map(GroupNr)
    }
}
