//! A journal that the kernel wrote: every block parses, every checksum matches, and our writer makes the
//! same bytes.

use std::process::Command;

use crate::images::{directory, mke2fs, mounted};

use onggi_disk_format::Tid;
use onggi_disk_format::jbd2::{
    BlockType, DescriptorBuilder, Header, Incompat, JournalSuperblock, RevokeBuilder, encode_commit,
    parse_commit, parse_descriptor, parse_revoke, tag_checksum,
};

/// Files come and go with syncs between, and an extent-block-heavy file shrinks, for revokes.
const WORK: &str = r#"
set -e
cd "$1"
for round in 1 2 3; do
  mkdir d; i=0; while [ $i -lt 300 ]; do : > d/f$i; i=$((i+1)); done; sync -f .
  rm -r d; sync -f .
done
"#;

#[test]
fn the_kernels_log() {
    let dir = directory();
    let recipes: [(&[&str], Incompat); 4] = [
        (&["-b", "4096"], Incompat::CSUM_V3 | Incompat::BIT64),
        (&["-b", "1024", "-O", "^64bit"], Incompat::CSUM_V3),
        (&["-b", "1024", "-O", "^metadata_csum"], Incompat::BIT64),
        (&["-b", "4096", "-O", "^64bit,^metadata_csum"], Incompat::default()),
    ];
    for (index, (recipe, expected)) in recipes.iter().enumerate() {
        let path = dir.path().join(format!("{index}.img"));
        if mke2fs(&path, "64M", recipe).is_none() || !mounted(&path, WORK) {
            return;
        }
        let dump = dir.path().join("journal");
        let request = format!("dump <8> {}", dump.display());
        assert!(Command::new("debugfs").args(["-R", &request]).arg(&path).output().unwrap().status.success());
        let seen = check_log(&std::fs::read(&dump).unwrap(), *expected);
        println!("{recipe:?}: {seen:?}");
        assert!(seen.descriptors >= 5 && seen.commits >= 5 && seen.revokes >= 1, "{recipe:?}: {seen:?}");
    }
}

#[derive(Debug, Default)]
struct Seen {
    descriptors: usize,
    data: usize,
    commits: usize,
    revokes: usize,
}

fn check_log(bytes: &[u8], expected: Incompat) -> Seen {
    let superblock = JournalSuperblock::parse(bytes).unwrap();
    assert_eq!(superblock.encode(), bytes[..1024]);
    let layout = superblock.layout();
    assert_eq!(layout.incompat.without(Incompat::REVOKE), expected);
    let size = superblock.block_size() as usize;
    let blocks: Vec<&[u8]> = bytes.chunks_exact(size).collect();
    let mut seen = Seen::default();
    let mut at = superblock.first() as usize;
    let mut sequence: Option<Tid> = None;
    while at < superblock.log_end().unwrap() as usize {
        let Some(header) = Header::parse(blocks[at]) else { break };
        let mut again = vec![0xaa; size];
        match header.block_type {
            BlockType::Descriptor => {
                let (tid, tags) = parse_descriptor(&layout, blocks[at]).unwrap();
                let mut builder = DescriptorBuilder::new(layout, tid, [0; 16], &mut again).unwrap();
                for (ahead, tag) in tags.iter().enumerate() {
                    let computed = tag_checksum(layout.seed, tid, blocks[at + 1 + ahead]);
                    assert!(tag.checksum.matches(computed), "block {}", at + 1 + ahead);
                    assert!(builder.push(tag.block, tag.escaped, computed));
                }
                assert_eq!(builder.finish(), tags.len());
                assert_eq!(again, blocks[at], "descriptor in block {at}");
                seen.descriptors += 1;
                seen.data += tags.len();
                at += tags.len();
            }
            BlockType::Commit => {
                let commit = parse_commit(&layout, blocks[at]).unwrap();
                encode_commit(&layout, &commit, &mut again).unwrap();
                assert_eq!(again, blocks[at], "commit in block {at}");
                if let Some(before) = sequence {
                    assert_eq!(commit.sequence, before.next());
                }
                sequence = Some(commit.sequence);
                seen.commits += 1;
            }
            BlockType::Revoke => {
                let (tid, revoked) = parse_revoke(&layout, blocks[at]).unwrap();
                let mut builder = RevokeBuilder::new(layout, tid, &mut again).unwrap();
                assert!(revoked.iter().all(|&block| builder.push(block)));
                builder.finish();
                assert_eq!(again, blocks[at], "revoke block {at}");
                seen.revokes += 1;
            }
            other => panic!("{other:?} in block {at}"),
        }
        at += 1;
    }
    seen
}
