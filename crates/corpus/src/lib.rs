//! Hostile images for tests.
//!
//! **Does:** patches a valid ext4 image with hostile values (zero, most, off by one, loops, overlaps, huge
//! counts) and makes the checksums right again, so that the code behind the checksums is reached; also
//! damages bytes blindly. The same image and seed give the same result, which says what it is.
//! **Never does:** I/O, clocks; it is no part of the engine.
//! **Called by:** tests only.
//! **Locks:** none.

mod field;
pub mod golden;
mod mutations;
mod random;
mod seal;
mod survey;
mod value;

pub use mutations::kinds;
pub use random::Random;

use survey::Survey;

/// What was done to an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// What stands at the place now and what stood there, in words.
    pub description: String,
    /// Kinds of structure that were changed, as of [`kinds`].
    pub kinds: Vec<&'static str>,
    /// Bytes that the image shall be cut to; its length when it stays whole.
    pub length: usize,
}

impl std::fmt::Display for Mutation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.description)
    }
}

/// Makes `image`, a valid ext4 volume, hostile. One change most of the time, up to four now and then.
pub fn mutate(image: &mut [u8], seed: u64) -> Mutation {
    let mut random = Random::new(seed);
    let survey = Survey::of(image);
    let count = if random.chance(3, 4) { 1 } else { 2 + random.below(3) };
    let mut mutation = Mutation { description: String::new(), kinds: Vec::new(), length: image.len() };
    for _ in 0..count {
        let (kind, change) = mutations::one(image, survey.as_ref(), &mut random);
        if let Some(length) = change.length {
            mutation.length = mutation.length.min(length);
        }
        mutation.kinds.push(kind);
        if !mutation.description.is_empty() {
            mutation.description.push_str("; ");
        }
        mutation.description.push_str(&change.text);
    }
    mutation
}

/// As [`mutate`], one change of the given kind. `None` when the image has nothing of the kind.
pub fn mutate_kind(image: &mut [u8], kind: &str, seed: u64) -> Option<Mutation> {
    let mut random = Random::new(seed);
    let survey = Survey::of(image);
    let (kind, change) = mutations::of_kind(image, survey.as_ref(), kind, &mut random)?;
    let length = change.length.unwrap_or(image.len());
    Some(Mutation { description: change.text, kinds: vec![kind], length })
}
