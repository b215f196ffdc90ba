//! Values that break things.

use crate::Random;
use crate::field::{Field, Order};
use crate::survey::Survey;

/// Another value than `old` for a field of `size` bytes.
pub(crate) fn hostile(old: u64, size: usize, survey: Option<&Survey>, random: &mut Random) -> u64 {
    let bits = size.min(8) as u32 * 8;
    let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
    for _ in 0..64 {
        let value = candidate(old, mask, bits, survey, random) & mask;
        if value != old & mask {
            return value;
        }
    }
    !old & mask
}

fn candidate(old: u64, mask: u64, bits: u32, survey: Option<&Survey>, random: &mut Random) -> u64 {
    let plain = [
        0,
        1,
        mask,
        mask - 1,
        mask >> 1,
        (mask >> 1) + 1,
        old.wrapping_add(1),
        old.wrapping_sub(1),
        old.wrapping_mul(2),
        old / 2,
        old.wrapping_add(4),
        old.wrapping_sub(4),
        old ^ 1 << random.below(u64::from(bits)),
        !old,
        random.number(),
        random.below(256),
        1 << random.below(u64::from(bits)),
        u64::from(u16::MAX),
        u64::from(u32::MAX),
    ];
    let Some(survey) = survey.filter(|_| random.chance(2, 5)) else {
        return random.pick(&plain).copied().unwrap_or(0);
    };
    let sb = &survey.sb;
    let related = [
        sb.blocks_count(),
        sb.blocks_count() - 1,
        sb.blocks_count() + 1,
        random.below(sb.blocks_count()),
        survey.metadata_block(random),
        u64::from(sb.inodes_count()),
        u64::from(sb.inodes_count()) + 1,
        random.below(u64::from(sb.inodes_count())),
        survey.inode(random).map_or(2, |inode| u64::from(inode.nr.0)),
        u64::from(sb.block_size()),
        u64::from(sb.block_size()) + 1,
        u64::from(sb.groups()),
        u64::from(sb.blocks_per_group()),
        u64::from(sb.inodes_per_group()) + 1,
    ];
    random.pick(&related).copied().unwrap_or(0)
}

/// Gives one of `fields` a hostile value and says so.
pub(crate) fn spoil(
    bytes: &mut [u8],
    fields: &[Field],
    order: Order,
    survey: Option<&Survey>,
    random: &mut Random,
) -> Option<String> {
    let field = random.pick(fields)?;
    let Some(old) = field.get(bytes, order) else {
        let range = field.offset..field.offset + field.size;
        for byte in bytes.get_mut(range)? {
            *byte = random.number() as u8;
        }
        return Some(format!("{} becomes random bytes", field.name));
    };
    let value = hostile(old, field.size, survey, random);
    field.set(bytes, order, value);
    Some(format!("{} becomes {value:#x}, was {old:#x}", field.name))
}
