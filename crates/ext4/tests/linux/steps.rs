//! Random steps on volumes that mke2fs made, judged by e2fsck.

use onggi_model::{Check, seed_or};
use onggi_vfs::FileSystem;

use crate::image::Image;
use crate::soak;
use crate::support::assert_image_clean;

const VOLUMES: [(u32, &str); 11] = [
    (4096, ""),
    (1024, ""),
    (2048, ""),
    (4096, "-O ^metadata_csum"),
    (4096, "-O ^metadata_csum,uninit_bg,^64bit"),
    (1024, "-O ^metadata_csum,^64bit,^flex_bg,^resize_inode"),
    (4096, "-O ^has_journal"),
    (1024, "-O ^has_journal,^metadata_csum"),
    (4096, "-O orphan_file,metadata_csum_seed"),
    (4096, "-O ^dir_index,^huge_file"),
    (1024, "-I 512 -O sparse_super2,^dir_nlink -J size=1"),
];

#[test]
fn every_kind_of_volume_takes_random_steps() {
    for (index, (block_size, options)) in VOLUMES.into_iter().enumerate() {
        let options = format!("-b {block_size} {options}");
        let Some(image) = Image::mke2fs(512 << 20, &options) else { continue };
        let fs = image.mount_here(|_| {}).unwrap_or_else(|error| panic!("{options}: {error}"));
        let mut check = Check::ext4(block_size);
        if options.contains("^huge_file") {
            // 2^32 - 1 sectors, in whole blocks.
            check.profile.limits.max_file_size = (1 << 41) - u64::from(block_size);
        }
        let seed = seed_or(50_000 + index as u64);
        if let Err(failure) = check.run(&*fs, seed, soak(3000, 30_000)) {
            panic!("{options}: {failure}");
        }
        fs.unmount().expect("unmount");
        drop(fs);
        assert_image_clean(&image.path);
    }
}
