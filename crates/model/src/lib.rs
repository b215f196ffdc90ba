//! The oracle.
//!
//! **Does:** keeps a file system in memory that answers as Linux ext4 does ([`ModelFs`]); makes random
//! operations ([`Generator`]) that are lines of text ([`Step`]); runs them on an engine and on the model
//! and says where they part ([`Check`], [`check_against_model`]); dumps any file system as a comparable
//! value ([`tree()`]).
//! **Never does:** I/O, durability, limits of space, permission checks, access times of reads.
//! **Called by:** tests of engines, the crash explorer.
//! **Locks:** one, around the model's whole state.

mod attributes;
mod check;
mod content;
mod file;
mod generate;
mod limits;
mod model_fs;
mod namespace;
mod ops;
mod random;
mod session;
mod state;
mod tree;

pub use check::{Check, Failure, check_against_model, seed_or};
pub use generate::{Generator, Profile};
pub use limits::Limits;
pub use model_fs::ModelFs;
pub use ops::{BadStep, Made, Op, Place, Step, moment};
pub use random::{Random, pattern};
pub use session::{AttrView, Outcome, Session, dense_steps};
pub use tree::{Blocks, CONTENT_BLOCK, Compare, Node, Tree, TreeError, contents, shape, tree};
