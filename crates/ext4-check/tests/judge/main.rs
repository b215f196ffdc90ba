//! The check against e2fsck, the kernel's volumes, and planted damage.

mod damage;
mod e2fsck;
mod images;
mod noise;
mod patch;
mod recovery;
