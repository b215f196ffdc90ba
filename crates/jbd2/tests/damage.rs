//! Recovery of logs that are damaged, hostile or written by others.

mod rig;

use std::sync::Arc;

use onggi_block_device::{BlockDevice, MemoryDevice};
use onggi_disk_format::checksum::crc32_be;
use onggi_disk_format::jbd2::{
    Commit, Compat, DescriptorBuilder, Incompat, JournalSuperblock, Layout, RevokeBuilder,
    TransactionChecksum, encode_commit, tag_checksum,
};
use onggi_disk_format::{DiskBlock, Tid};
use onggi_fault_device::Prng;
use onggi_jbd2::{Journal, JournalError, RecoveryError};
use rig::{Payload, Rig, fill};

/// Writes log blocks by hand.
struct Scribe<'a> {
    rig: &'a Rig,
    device: &'a dyn BlockDevice,
    layout: Layout,
    at: u32,
    tid: Tid,
    sum: u32,
}

impl<'a> Scribe<'a> {
    /// Points the superblock, given these features, at block `at` and transaction `tid`.
    fn new(
        rig: &'a Rig,
        device: &'a dyn BlockDevice,
        features: (Compat, Incompat),
        at: u32,
        tid: Tid,
    ) -> Self {
        let (compat, incompat) = features;
        let superblock = JournalSuperblock::new(rig.block_size, rig.journal, incompat, [9; 16]).unwrap();
        let superblock = superblock
            .with(|raw| {
                raw.s_feature_compat.set(compat.bits());
                raw.s_start.set(at);
                raw.s_sequence.set(tid.0);
            })
            .unwrap();
        rig.put_superblock(device, &superblock);
        Self { rig, device, layout: superblock.layout(), at, tid, sum: !0 }
    }

    fn put(&mut self, block: &[u8]) {
        self.device.write_at(self.rig.byte(self.rig.map().locate(self.at).unwrap()), block).unwrap();
        self.at = if self.at + 1 == self.rig.journal { 1 } else { self.at + 1 };
    }

    fn images(&mut self, images: &[(u64, u8)]) -> &mut Self {
        let size = self.rig.block_size as usize;
        let mut block = vec![0; size];
        let mut builder = DescriptorBuilder::new(self.layout, self.tid, [9; 16], &mut block).unwrap();
        for &(nr, byte) in images {
            let sum = tag_checksum(self.layout.seed, self.tid, &vec![byte; size]);
            assert!(builder.push(DiskBlock(nr), false, sum));
        }
        builder.finish();
        self.sum = crc32_be(self.sum, &block);
        self.put(&block);
        for &(_, byte) in images {
            self.sum = crc32_be(self.sum, &vec![byte; size]);
            self.put(&vec![byte; size]);
        }
        self
    }

    fn revoke(&mut self, blocks: &[u64]) -> &mut Self {
        let mut block = vec![0; self.rig.block_size as usize];
        let mut builder = RevokeBuilder::new(self.layout, self.tid, &mut block).unwrap();
        blocks.iter().for_each(|&nr| assert!(builder.push(DiskBlock(nr))));
        builder.finish();
        self.put(&block);
        self
    }

    fn commit(&mut self) -> &mut Self {
        let sum = TransactionChecksum { kind: 1, size: 4, value: self.sum };
        self.commit_with(Some(sum))
    }

    fn commit_with(&mut self, sum: Option<TransactionChecksum>) -> &mut Self {
        let mut block = vec![0; self.rig.block_size as usize];
        let transaction_checksum = sum.filter(|_| self.layout.compat.contains(Compat::CHECKSUM));
        let commit = Commit { sequence: self.tid, sec: 1, nsec: 2, transaction_checksum };
        encode_commit(&self.layout, &commit, &mut block).unwrap();
        self.put(&block);
        self.tid = self.tid.next();
        self.sum = !0;
        self
    }
}

fn first_bytes(rig: &Rig, device: &dyn BlockDevice, blocks: &[u64]) -> Vec<u8> {
    blocks.iter().map(|&nr| rig.block(device, DiskBlock(nr))[100]).collect()
}

const PLAIN: (Compat, Incompat) = (Compat::from_bits(0), Incompat::REVOKE);

/// Every log format there is.
fn formats() -> Vec<(Compat, Incompat)> {
    let none = Compat::default();
    let wide = Incompat::REVOKE | Incompat::BIT64;
    vec![
        PLAIN,
        (none, wide),
        (Compat::CHECKSUM, Incompat::REVOKE),
        (Compat::CHECKSUM, wide | Incompat::ASYNC_COMMIT),
        (none, Incompat::REVOKE | Incompat::CSUM_V2),
        (none, wide | Incompat::CSUM_V2),
        (none, Incompat::REVOKE | Incompat::CSUM_V3),
        (none, wide | Incompat::CSUM_V3),
    ]
}

#[test]
fn every_format_replays_around_the_ring_and_around_the_numbers() {
    let rig = Rig::default();
    for features in formats() {
        let device = rig.device();
        let mut scribe = Scribe::new(&rig, &device, features, 60, Tid(u32::MAX));
        scribe.images(&[(1, 11), (2, 12), (3, 13)]).commit();
        scribe.images(&[(2, 22), (4, 24), (5, 25)]).revoke(&[1, 4, 9]).commit();
        scribe.images(&[(1, 31)]).images(&[(6, 36)]).commit();
        scribe.images(&[(3, 99)]);
        let recovery = rig.recover(&device).unwrap();
        assert_eq!((recovery.transactions, recovery.blocks, recovery.revoked), (3, 5, 1), "{features:?}");
        assert_eq!(recovery.damaged, None);
        // A revoke wins over an image of its own transaction, not over a later one.
        assert_eq!(first_bytes(&rig, &device, &[1, 2, 3, 4, 5, 6]), [31, 22, 13, 0, 25, 36], "{features:?}");
        let superblock = rig.superblock(&device);
        assert_eq!((superblock.start(), superblock.sequence()), (0, recovery.next));
        assert!(recovery.next.after(Tid(3)));
        assert!(!rig.recover(&device).unwrap().was_dirty);
    }
}

#[test]
fn a_damaged_transaction_ends_the_log_before_any_of_it_is_written() {
    let rig = Rig::default();
    // Log blocks: 1 descriptor, 2-3 data, 4 commit | 5 revoke, 6 descriptor, 7-8 data, 9 commit.
    for features in formats() {
        for hurt in 5..=9u32 {
            let device = rig.device();
            let mut scribe = Scribe::new(&rig, &device, features, 1, Tid(7));
            scribe.images(&[(1, 11), (2, 12)]).commit();
            scribe.revoke(&[1]).images(&[(2, 22), (3, 23)]).commit();
            let offset = rig.byte(rig.map().locate(hurt).unwrap()) + 512;
            let mut sector = vec![0; 512];
            device.read_at(offset, &mut sector).unwrap();
            sector.iter_mut().for_each(|byte| *byte ^= 0x40);
            device.write_at(offset, &sector).unwrap();
            let recovery = rig.recover(&device).unwrap();
            let summed = features.1.intersects(Incompat::CSUM_V2 | Incompat::CSUM_V3);
            let caught = summed || (features.0.contains(Compat::CHECKSUM) && (6..9).contains(&hurt));
            let wanted = if caught { (1, Some(Tid(8))) } else { (2, None) };
            assert_eq!((recovery.transactions, recovery.damaged), wanted, "{features:?}, block {hurt}");
            if caught {
                assert_eq!(first_bytes(&rig, &device, &[1, 2, 3]), [11, 12, 0]);
            }
        }
    }
}

#[test]
fn a_missing_whole_transaction_checksum_is_no_damage_and_a_wrong_kind_is() {
    let rig = Rig::default();
    for (kind, size, value, accepted) in [(0, 0, 0, 1), (0, 0, 5, 0), (2, 4, 0, 0), (1, 8, 0, 0)] {
        let device = rig.device();
        let mut scribe = Scribe::new(&rig, &device, (Compat::CHECKSUM, Incompat::REVOKE), 1, Tid(7));
        scribe.images(&[(1, 11)]).commit_with(Some(TransactionChecksum { kind, size, value }));
        assert_eq!(rig.recover(&device).unwrap().transactions, accepted, "{kind} {size} {value}");
    }
}

#[test]
fn homes_out_of_range_or_inside_the_journal_are_refused_before_anything_is_written() {
    let rig = Rig::default();
    for (home, inside) in
        [(rig.volume_blocks(), false), (u64::MAX, false), (Rig::GAP, true), (Rig::GAP + 70, false)]
    {
        let device = rig.device();
        let features = (Compat::default(), Incompat::REVOKE | Incompat::BIT64);
        let mut scribe = Scribe::new(&rig, &device, features, 1, Tid(7));
        scribe.images(&[(1, 11)]).commit().images(&[(2, 12), (home, 13)]).commit();
        let before = device.to_bytes();
        let outcome = rig.recover(&device);
        match (inside, home < rig.volume_blocks()) {
            (true, _) => {
                assert!(matches!(outcome, Err(RecoveryError::InsideJournal { at: 6, .. })), "{outcome:?}");
            }
            (false, false) => {
                assert!(matches!(outcome, Err(RecoveryError::OutsideVolume { at: 6, .. })), "{outcome:?}");
            }
            (false, true) => {
                assert_eq!(outcome.unwrap().blocks, 3);
                continue;
            }
        }
        assert!(device.to_bytes() == before);
    }
}

#[test]
fn unsupported_journals_are_refused_by_name() {
    let rig = Rig::default();
    let refusal = |change: fn(&mut onggi_disk_format::jbd2::RawJournalSuperblock)| {
        let device = rig.device();
        Scribe::new(&rig, &device, PLAIN, 1, Tid(7)).images(&[(1, 11)]).commit();
        rig.put_superblock(&device, &rig.superblock(&device).with(change).unwrap());
        let outcome = rig.recover(&device);
        assert_eq!(first_bytes(&rig, &device, &[1]), [0]);
        outcome.unwrap_err()
    };
    for (error, name) in [
        (refusal(|raw| raw.s_feature_incompat.set(0x4000_0000)), "0x40000000"),
        (refusal(|raw| raw.s_feature_ro_compat.set(4)), "ro_compat 0x4"),
        (refusal(|raw| raw.s_nr_users.set(2)), "external journal of 2 users"),
        (
            refusal(|raw| {
                raw.s_feature_incompat.set(0x20);
                raw.s_num_fc_blks.set(8);
            }),
            "fast_commit",
        ),
    ] {
        assert!(matches!(&error, RecoveryError::Unsupported { feature } if feature == name), "{error}");
    }
    let short = refusal(|raw| raw.s_maxlen.set(66));
    assert_eq!(short, RecoveryError::Journal(JournalError::ShortMap { blocks: 65, maxlen: 66 }));
    let blocks = refusal(|raw| raw.s_blocksize.set(2048));
    assert_eq!(blocks, RecoveryError::Journal(JournalError::BlockSize { journal: 2048, volume: 1024 }));
}

#[test]
fn a_clean_log_with_fast_commits_opens_and_loses_the_feature() {
    let rig = Rig::default();
    let device: Arc<dyn BlockDevice> = Arc::new(rig.device());
    let superblock = rig.superblock(&device);
    let superblock = superblock
        .with(|raw| {
            raw.s_feature_incompat.set(0x20);
            raw.s_num_fc_blks.set(8);
        })
        .unwrap();
    rig.put_superblock(&device, &superblock);
    assert!(!rig.recover(&device).unwrap().was_dirty);
    let journal = rig.open(Arc::clone(&device));
    fill(&journal, &[(1, 1)]);
    assert!(!rig.superblock(&device).incompat().contains(Incompat::FAST_COMMIT));
}

#[test]
fn a_journal_of_the_first_form_is_replayed_and_renewed() {
    let rig = Rig { checksum_v3: false, sixty_four_bit: false, ..Rig::default() };
    let device: Arc<dyn BlockDevice> = Arc::new(rig.device());
    Scribe::new(&rig, &device, (Compat::default(), Incompat::default()), 1, Tid(7))
        .images(&[(1, 11)])
        .commit();
    let old = rig
        .superblock(&device)
        .with(|raw| {
            raw.h_blocktype.set(3);
            // Means nothing in the first form.
            raw.s_feature_incompat.set(0xffff_ffff);
            raw.s_nr_users.set(77);
        })
        .unwrap();
    rig.put_superblock(&device, &old);
    assert_eq!(rig.recover(&device).unwrap().transactions, 1);
    assert_eq!(first_bytes(&rig, &device, &[1]), [11]);
    let journal = rig.open(Arc::clone(&device));
    fill(&journal, &[(1, 1)]);
    drop(journal);
    let superblock = rig.superblock(&device);
    assert!(superblock.is_v2() && superblock.incompat() == Incompat::REVOKE);
    assert_eq!(rig.recover(&device).unwrap().transactions, 1);
    assert_eq!(first_bytes(&rig, &device, &[1]), [1]);
}

#[test]
fn numbers_behind_a_damaged_place_are_never_used_again() {
    let rig = Rig::default();
    let device: Arc<dyn BlockDevice> = Arc::new(rig.device());
    let features = (Compat::default(), Incompat::REVOKE | Incompat::CSUM_V3 | Incompat::BIT64);
    let mut scribe = Scribe::new(&rig, &device, features, 1, Tid(7));
    for byte in 1..=10 {
        scribe.images(&[(1, byte)]).commit();
    }
    // Transaction 8 is lost to the medium; those behind it are still readable.
    device.write_at(rig.byte(rig.map().locate(4).unwrap()), &[0; 1024]).unwrap();
    let recovery = rig.recover(&device).unwrap();
    assert_eq!(recovery.transactions, 1);
    // New transactions of the same shape lie over the old ones, so that old ones follow them directly.
    let journal: Journal<Payload> = rig.open(Arc::clone(&device));
    fill(&journal, &[(1, 50), (2, 50), (3, 50), (4, 50)]);
    fill(&journal, &[(1, 51)]);
    fill(&journal, &[(1, 52)]);
    drop(journal);
    assert_eq!(rig.recover(&device).unwrap().transactions, 3);
    assert_eq!(first_bytes(&rig, &device, &[1, 2]), [52, 50]);
}

#[test]
fn no_log_makes_recovery_panic_hang_or_write_outside_its_homes() {
    let rig = Rig::default();
    for seed in 0..4000 {
        let mut prng = Prng::new(seed);
        let features = formats()[seed as usize % 8];
        let device = rig.device();
        let start = 1 + prng.below(64) as u32;
        let mut scribe = Scribe::new(&rig, &device, features, start, Tid(prng.bits() as u32));
        for _ in 0..1 + prng.below(20) {
            let images: Vec<_> =
                (0..1 + prng.below(4)).map(|_| (prng.below(60), prng.bits() as u8)).collect();
            scribe.images(&images);
            if prng.chance(1, 3) {
                scribe.revoke(&[prng.below(60), prng.bits() >> 32]);
            }
            if prng.chance(4, 5) {
                scribe.commit();
            }
        }
        hurt(&rig, &device, &mut prng);
        let before = device.to_bytes();
        let outcome = rig.recover(&device);
        let after = device.to_bytes();
        if outcome.is_err() {
            assert!(before == after, "seed {seed}");
        } else {
            assert!(!rig.recover(&device).unwrap().was_dirty, "seed {seed}");
        }
        let map = rig.map();
        let changed = (0..rig.volume_blocks()).filter(|nr| {
            let bytes = *nr as usize * 1024..(*nr as usize + 1) * 1024;
            before[bytes.clone()] != after[bytes]
        });
        let inside: Vec<u64> = changed.filter(|nr| map.contains(DiskBlock(*nr))).collect();
        assert!(inside.iter().all(|nr| Some(DiskBlock(*nr)) == map.locate(0)), "seed {seed}");
    }
}

/// Changes a few words of the log or the superblock; the superblock gets its checksum again.
fn hurt(rig: &Rig, device: &MemoryDevice, prng: &mut Prng) {
    for _ in 0..1 + prng.below(4) {
        let block = rig.map().locate(prng.below(u64::from(rig.journal)) as u32).unwrap();
        let mut bytes = rig.block(device, block);
        let at = if prng.chance(1, 2) { prng.below(16) * 4 } else { prng.below(256) * 4 } as usize;
        let word = match prng.below(4) {
            0 => 0,
            1 => u32::MAX,
            2 => prng.below(80) as u32,
            _ => prng.bits() as u32,
        };
        bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
        device.write_at(rig.byte(block), &bytes).unwrap();
    }
    let block = rig.map().locate(0).unwrap();
    let bytes = rig.block(device, block);
    let mut unsummed = bytes.clone();
    // Make the parser believe the changed fields: take the checksum features out, parse, put them back.
    unsummed[0x28..0x2c].fill(0);
    if let Ok(superblock) = JournalSuperblock::parse(&unsummed) {
        let features: [u8; 4] = bytes[0x28..0x2c].try_into().unwrap();
        if let Ok(whole) = superblock.with(|raw| raw.s_feature_incompat.set(u32::from_be_bytes(features))) {
            rig.put_superblock(device, &whole);
        }
    }
}
