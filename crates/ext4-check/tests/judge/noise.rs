//! Noise in the metadata of a valid volume: no panic, no hang, and a repair converges.

use onggi_block_device::MemoryDevice;
use onggi_ext4_check::{Mode, check};

use crate::images::Image;
use crate::patch::Patch;

const FILL: &str = r#"
cd "$1"
mkdir -p a/b/c many
i=0; while [ $i -lt 400 ]; do : > "many/a_rather_long_name_$i"; i=$((i+1)); done
head -c 300000 /dev/zero > a/file; ln -s "$(printf 'x%.0s' $(seq 200))" a/link
i=0; while [ $i -lt 40 ]; do dd if=/dev/zero of=a/sparse bs=1k count=1 seek=$((i*3)) conv=notrunc; i=$((i+1)); done 2>/dev/null
setfattr -n user.large -v "$(printf 'y%.0s' $(seq 300))" a/file 2>/dev/null || true
"#;

/// A small generator, so that a seed says everything.
struct Noise(u64);

impl Noise {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

#[test]
fn noise_never_panics() {
    for recipe in [
        &["-b", "1024", "-O", "^metadata_csum"][..],
        &["-b", "1024"],
        &["-b", "1024", "-O", "^extent,^64bit"],
    ] {
        let Some(image) = Image::make("8M", recipe) else { return };
        if !image.mounted(FILL) {
            return;
        }
        let clean = image.bytes();
        let metadata = metadata_blocks(&image, &clean);
        let rounds: u64 = std::env::var("NOISE").map_or(300, |text| text.parse().unwrap());
        let mut repaired = 0;
        for seed in 0..rounds {
            // Seeds are far apart, so that their first numbers are too.
            let mut noise = Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut bytes = clean.clone();
            scatter(&mut noise, &mut bytes, &metadata);
            let device = MemoryDevice::from_bytes(&bytes);
            let before = check(&device, Mode::ReadOnly, &|_| ());
            assert!(device.to_bytes() == bytes, "seed {seed}: a look changed the volume");
            if before.is_err() || check(&device, Mode::Yes, &|_| ()).is_err() {
                continue;
            }
            let after = check(&device, Mode::ReadOnly, &|_| ()).unwrap();
            repaired += usize::from(after.is_clean());
        }
        println!("{recipe:?}: {repaired} of {rounds} clean in the end");
        assert!(repaired > rounds as usize / 3, "{repaired}");
    }
}

/// Changes up to seven bytes of the metadata.
fn scatter(noise: &mut Noise, bytes: &mut [u8], metadata: &[usize]) {
    for _ in 0..=noise.next(6) {
        let block = metadata[noise.next(metadata.len() as u64) as usize];
        let at = block * 1024 + noise.next(1024) as usize;
        bytes[at] = match noise.next(3) {
            0 => 0,
            1 => noise.next(256) as u8,
            _ => bytes[at] ^ (1 << noise.next(8)),
        };
    }
}

/// What e2fsck calls broken, this check calls broken too.
#[test]
fn e2fsck_sees_no_more() {
    let rounds: u64 = std::env::var("NOISE").map_or(60, |text| text.parse().unwrap());
    for recipe in
        [&["-b", "1024", "-O", "^metadata_csum"][..], &["-b", "1024", "-O", "^extent,^64bit,^metadata_csum"]]
    {
        let Some(image) = Image::make("8M", recipe) else { return };
        if !image.mounted(FILL) {
            return;
        }
        let clean = image.bytes();
        let metadata = metadata_blocks(&image, &clean);
        let mut failures = Vec::new();
        for seed in 0..rounds {
            let mut noise = Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mut bytes = clean.clone();
            scatter(&mut noise, &mut bytes, &metadata);
            image.restore(&bytes);
            let (judged, said) = image.e2fsck_output();
            if judged != 0 && image.check(Mode::ReadOnly).is_ok_and(|report| report.is_clean()) {
                if let Ok(keep) = std::env::var("NOISE_KEEP") {
                    std::fs::write(format!("{keep}/{seed}.img"), &bytes).unwrap();
                }
                failures.push(format!("seed {seed}: e2fsck says {judged}: {said}"));
            }
        }
        assert!(failures.is_empty(), "{recipe:?}: {} missed\n{}", failures.len(), failures.join("\n"));
    }
}

/// Blocks that are not zero and not file data.
fn metadata_blocks(image: &Image, clean: &[u8]) -> Vec<usize> {
    let mut patch = Patch::new(clean.to_vec());
    let used =
        (1..clean.len() / 1024).filter(|&block| patch.block(block as u64).iter().any(|&byte| byte != 0));
    let mut blocks: Vec<usize> = used.collect();
    // The journal is long and mostly stale.
    let journal: Vec<usize> =
        image.debugfs("blocks <8>").split_whitespace().filter_map(|word| word.parse().ok()).collect();
    blocks.retain(|block| !journal.contains(block) || journal.first() == Some(block));
    blocks
}
