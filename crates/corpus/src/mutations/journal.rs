//! The journal: its superblock, the blocks of its log, and transactions made up for replay.

use onggi_disk_format::ext4::{Incompat, RawSuperblock};
use onggi_disk_format::jbd2::{
    self, BlockType, CHECKSUM_CRC32C, Commit, DescriptorBuilder, JournalSuperblock, Layout,
    RawJournalSuperblock, RevokeBuilder, SUPERBLOCK_SIZE, TransactionChecksum, encode_commit, escape,
    tag_checksum,
};
use onggi_disk_format::{DiskBlock, Tid};

use crate::field::{Field, Order, fields};
use crate::survey::{Journal, Survey, block, block_mut};
use crate::{Random, seal, value};

/// Where a commit block's checksum stands.
const COMMIT_SUM: usize = 16;

/// Any field of the journal's superblock.
pub(super) fn superblock(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let journal = survey.journal.as_ref()?;
    let fields = fields!(RawJournalSuperblock: h_magic h_blocktype s_blocksize s_maxlen s_first s_sequence
        s_start s_start s_errno s_feature_compat s_feature_incompat s_feature_ro_compat s_uuid s_nr_users
        s_checksum_type s_num_fc_blks s_head);
    let bytes = block_mut(image, survey, journal.blocks[0])?;
    let text = value::spoil(bytes, &fields, Order::Big, Some(survey), random)?;
    seal::journal_superblock(bytes, &journal.superblock.layout());
    Some(format!("journal superblock: {text}"))
}

/// A field of a block of the log; a log without blocks gets a forged transaction first.
pub(super) fn log(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let journal = survey.journal.as_ref()?;
    let mut log = journal.log.clone();
    let mut layout = journal.superblock.layout();
    let mut before = String::new();
    if log.is_empty() {
        let forged = Forged::new(image, survey, random, true)?;
        before = forged.text + "; then ";
        (log, layout) = (forged.log, forged.layout);
    }
    let (place, kind) = *random.pick(&log)?;
    let size = survey.sb.block_size() as usize;
    let mut fields =
        vec![Field::new("h_magic", 0, 4), Field::new("h_blocktype", 4, 4), Field::new("h_sequence", 8, 4)];
    let sum_at = match kind {
        BlockType::Descriptor => {
            let tag = 12 + random.index(4) * (layout.tag_size() + 16);
            fields = vec![
                Field::new("t_blocknr", tag, 4),
                Field::new("tag flags", tag + 4, 4),
                Field::new("a word of a tag", tag + 8, 4),
                fields[2],
            ];
            size - 4
        }
        BlockType::Revoke => {
            fields.push(Field::new("r_count", 12, 4));
            fields.push(Field::new("r_count", 12, 4));
            fields.push(Field::new("a revoked block", 16, layout.revoke_size()));
            size - 4
        }
        BlockType::Commit => {
            fields.push(Field::new("h_chksum_type", 12, 1));
            fields.push(Field::new("h_commit_sec", 48, 8));
            COMMIT_SUM
        }
        _ => return None,
    };
    let bytes = block_mut(image, survey, place)?;
    let text = value::spoil(bytes, &fields, Order::Big, Some(survey), random)?;
    seal::log_block(bytes, &layout, sum_at);
    Some(format!("{before}{kind:?} block {place} of the log: {text}"))
}

/// A well-formed transaction that replay would write where it must not.
pub(super) fn forge(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    Some(Forged::new(image, survey, random, false)?.text)
}

/// A transaction made up.
struct Forged {
    text: String,
    layout: Layout,
    log: Vec<(DiskBlock, BlockType)>,
}

impl Forged {
    /// Writes transactions into the log, from block 1 or across its end, and says in both superblocks that
    /// they must be replayed. `harmless` ones write home what is there.
    fn new(image: &mut [u8], survey: &Survey, random: &mut Random, harmless: bool) -> Option<Self> {
        let journal = survey.journal.as_ref()?;
        let end = journal.superblock.log_end()?.min(journal.blocks.len() as u32);
        let first = journal.superblock.first();
        if end.checked_sub(first)? < 64 {
            return None;
        }
        let any = random.number() as u32;
        let sequence = Tid(*random.pick(&[1, 7, u32::MAX, u32::MAX - 1, any])?);
        let start = if random.chance(1, 3) { end - 1 - random.below(4) as u32 } else { first };
        let superblock = refit(&journal.superblock, random)?;
        let layout = superblock.layout();
        let mut log = Log { journal, layout, survey, at: start, first, end, written: Vec::new() };
        let mut texts = Vec::new();
        let mut tid = sequence;
        for _ in 0..=random.below(3) {
            texts.push(log.transaction(image, tid, random, harmless)?);
            tid = tid.next();
        }
        let dirty = superblock.with(|raw| {
            raw.s_start.set(start);
            raw.s_sequence.set(sequence.0);
        });
        block_mut(image, survey, journal.blocks[0])?[..SUPERBLOCK_SIZE]
            .copy_from_slice(&dirty.ok()?.encode());
        let incompat = survey.sb.incompat() | Incompat::RECOVER;
        fields!(RawSuperblock: s_feature_incompat)[0].set(
            &mut image[1024..2048],
            Order::Little,
            u64::from(incompat.bits()),
        );
        seal::superblock(image, survey);
        let features = layout.incompat.names().join(",");
        let texts = texts.join(", ");
        let text = format!("forged log ({features}) from block {start}, sequence {sequence}: {texts}");
        Some(Self { text, layout, log: log.written })
    }
}

/// The journal with other features, as far as its log is empty: then nothing depends on them yet.
fn refit(superblock: &JournalSuperblock, random: &mut Random) -> Option<JournalSuperblock> {
    use jbd2::Incompat as Feature;
    if superblock.start() != 0 || random.chance(1, 4) {
        return Some(superblock.clone());
    }
    let revoke = Feature::REVOKE;
    let incompat = *random.pick(&[
        revoke,
        revoke | Feature::BIT64,
        revoke | Feature::CSUM_V2,
        revoke | Feature::BIT64 | Feature::CSUM_V2,
        revoke | Feature::CSUM_V3,
        revoke | Feature::BIT64 | Feature::CSUM_V3,
        revoke | Feature::BIT64 | Feature::CSUM_V3 | Feature::ASYNC_COMMIT,
    ])?;
    let checksummed = incompat.intersects(Feature::CSUM_V2 | Feature::CSUM_V3);
    superblock
        .with(|raw| {
            raw.s_feature_compat.set(0);
            raw.s_feature_incompat.set(incompat.bits());
            raw.s_checksum_type = if checksummed { CHECKSUM_CRC32C } else { 0 };
        })
        .ok()
}

/// A place in the log that moves on.
struct Log<'a> {
    journal: &'a Journal,
    layout: Layout,
    survey: &'a Survey,
    at: u32,
    first: u32,
    end: u32,
    written: Vec<(DiskBlock, BlockType)>,
}

impl Log<'_> {
    fn next(&mut self) -> DiskBlock {
        let place = self.journal.blocks[self.at as usize];
        self.at += 1;
        if self.at >= self.end {
            self.at = self.first;
        }
        place
    }

    /// One transaction: revokes now and then, a descriptor, its data, a commit block.
    fn transaction(
        &mut self,
        image: &mut [u8],
        tid: Tid,
        random: &mut Random,
        harmless: bool,
    ) -> Option<String> {
        let layout = self.layout;
        let mut text = String::new();
        if layout.incompat.contains(jbd2::Incompat::REVOKE) && random.chance(1, 2) {
            let place = self.next();
            self.written.push((place, BlockType::Revoke));
            let mut revoke = RevokeBuilder::new(layout, tid, block_mut(image, self.survey, place)?).ok()?;
            for _ in 0..random.below(300) {
                if !revoke.push(DiskBlock(self.target(random, true))) {
                    break;
                }
            }
            revoke.finish();
            text.push_str("revokes and ");
        }
        let targets: Vec<u64> = (0..=random.below(12)).map(|_| self.target(random, harmless)).collect();
        text.push_str(&format!("writes of blocks {targets:x?}"));
        let magic = !harmless && random.chance(1, 4);
        self.write(image, tid, &targets, magic)?;
        Some(text)
    }

    fn write(&mut self, image: &mut [u8], tid: Tid, targets: &[u64], magic: bool) -> Option<()> {
        let layout = self.layout;
        let size = self.survey.sb.block_size() as usize;
        let descriptor = self.next();
        self.written.push((descriptor, BlockType::Descriptor));
        let mut tags = Vec::new();
        for &target in targets {
            let home = DiskBlock(target);
            let mut data = block(image, self.survey, home).map_or_else(|| vec![0; size], <[u8]>::to_vec);
            if magic {
                data[..4].copy_from_slice(&jbd2::MAGIC.to_be_bytes());
            }
            let escaped = escape(&mut data);
            let place = self.next();
            block_mut(image, self.survey, place)?.copy_from_slice(&data);
            tags.push((home, escaped, tag_checksum(layout.seed, tid, &data)));
        }
        let bytes = block_mut(image, self.survey, descriptor)?;
        let mut builder = DescriptorBuilder::new(layout, tid, self.journal.superblock.uuid(), bytes).ok()?;
        for (home, escaped, checksum) in tags {
            // A number that does not fit is left out, and its data with it count as what follows.
            let _ = builder.push(home, escaped, checksum);
        }
        builder.finish();
        let place = self.next();
        self.written.push((place, BlockType::Commit));
        let transaction_checksum = layout
            .compat
            .contains(jbd2::Compat::CHECKSUM)
            .then_some(TransactionChecksum { kind: 0, size: 0, value: 0 });
        let commit = Commit { sequence: tid, sec: 1, nsec: 2, transaction_checksum };
        encode_commit(&layout, &commit, block_mut(image, self.survey, place)?).ok()
    }

    /// A block to write or revoke.
    fn target(&self, random: &mut Random, harmless: bool) -> u64 {
        let mut inside = random.below(self.survey.sb.blocks_count());
        if harmless {
            while self.journal.blocks.contains(&DiskBlock(inside)) || inside == 0 {
                inside = random.below(self.survey.sb.blocks_count());
            }
            return inside;
        }
        match random.below(5) {
            0 => value::hostile(0, 8, Some(self.survey), random),
            1 => random.pick(&self.journal.blocks).map_or(0, |place| place.0),
            2 => self.survey.sb.blocks_count() + random.below(3),
            3 => self.survey.metadata_block(random),
            _ => inside,
        }
    }
}
