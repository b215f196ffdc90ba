//! The kinds of mutations, one structure each.

mod attributes;
mod directories;
mod inodes;
mod journal;
mod orphans;
mod raw;
mod trees;
mod volume;

use crate::Random;
use crate::survey::Survey;

/// What one mutation did.
pub(crate) struct Change {
    pub(crate) text: String,
    /// Where to cut the image, if it is to be cut.
    pub(crate) length: Option<usize>,
}

impl From<String> for Change {
    fn from(text: String) -> Self {
        Self { text, length: None }
    }
}

/// Changes the image, or finds nothing of its kind on it.
type Make = fn(&mut [u8], &Survey, &mut Random) -> Option<String>;

/// Changes any bytes.
type Damage = fn(&mut [u8], &mut Random) -> Change;

/// Kinds that need a valid volume.
const KINDS: [(&str, Make); 20] = [
    ("superblock", volume::superblock),
    ("group descriptor", volume::descriptor),
    ("group placement", volume::placement),
    ("block bitmap", volume::block_bitmap),
    ("inode bitmap", volume::inode_bitmap),
    ("inode", inodes::field),
    ("inode type", inodes::retype),
    ("inode copy", inodes::copy),
    ("extent root", trees::root),
    ("extent node", trees::node),
    ("extent target", trees::target),
    ("pointer", trees::pointer),
    ("directory entry", directories::entry),
    ("directory cycle", directories::cycle),
    ("directory index", directories::index),
    ("attribute block", attributes::block),
    ("attribute in inode", attributes::in_inode),
    ("journal superblock", journal::superblock),
    ("journal log", journal::log),
    ("orphans", orphans::any),
];

/// Kinds that work on any bytes.
const RAW: [(&str, Damage); 4] = [
    ("bit flips", raw::flip),
    ("zeroed range", raw::zero),
    ("moved blocks", raw::move_blocks),
    ("truncation", raw::truncate),
];

/// A kind that makes up transactions for replay.
const FORGED: (&str, Make) = ("forged transaction", journal::forge);

/// Names of all kinds of mutations.
#[must_use]
pub fn kinds() -> Vec<&'static str> {
    let volume = KINDS.iter().chain([&FORGED]).map(|(kind, _)| *kind);
    volume.chain(RAW.iter().map(|(kind, _)| *kind)).collect()
}

/// One mutation of a kind the image has.
pub(crate) fn one(image: &mut [u8], survey: Option<&Survey>, random: &mut Random) -> (&'static str, Change) {
    let kinds = kinds();
    for _ in 0..32 {
        let Some(kind) = random.pick(&kinds) else { break };
        if let Some(done) = of_kind(image, survey, kind, random) {
            return done;
        }
    }
    (RAW[0].0, raw::flip(image, random))
}

/// One mutation of `kind`; `None` when the image has nothing of it.
pub(crate) fn of_kind(
    image: &mut [u8],
    survey: Option<&Survey>,
    kind: &str,
    random: &mut Random,
) -> Option<(&'static str, Change)> {
    if let Some((kind, make)) = RAW.iter().find(|(name, _)| *name == kind) {
        return Some((kind, make(image, random)));
    }
    let (kind, make) = KINDS.iter().chain([&FORGED]).find(|(name, _)| *name == kind)?;
    Some((kind, make(image, survey?, random)?.into()))
}
