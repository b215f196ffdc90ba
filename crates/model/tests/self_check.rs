//! The model against itself: the harness runs through, and it notices a difference.

use onggi_model::{Check, Compare, Limits, ModelFs, Op, Step, check_against_model};
use onggi_vfs::FileSystem;

#[test]
fn the_model_agrees_with_itself() {
    for seed in 0..10 {
        check_against_model(&ModelFs::new(4096), seed, 3000).unwrap_or_else(|failure| panic!("{failure}"));
    }
    for block_size in [1024, 2048] {
        let check = Check { exact_seek: true, ..Check::ext4(block_size) };
        check.run(&ModelFs::new(block_size), 5, 3000).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn a_difference_is_found_and_made_small() {
    let mut limits = Limits::ext4(4096);
    limits.xattr_value_max = 100;
    let mut fresh = || Box::new(ModelFs::with_limits(limits)) as Box<dyn FileSystem>;
    let check = Check::ext4(4096);
    let failure = check.run(&*fresh(), 1, 5000).expect_err("a smaller limit must show");
    assert!(failure.to_string().contains("ONGGI_SEED=1"), "{failure}");
    let small = check.minimise(&mut fresh, &failure, 2000);
    assert!(small.steps.len() <= 4, "{small}");
    assert!(matches!(small.steps.last().unwrap().op, Op::Setxattr { .. }), "{small}");
    let lines: Vec<String> = small.steps.iter().map(Step::to_string).collect();
    let again: Vec<Step> = lines.iter().map(|line| line.parse().unwrap()).collect();
    assert!(check.replay(&*fresh(), &again).is_err());
}

#[test]
fn trees_say_what_differs() {
    let (one, two) = (ModelFs::new(4096), ModelFs::new(4096));
    let line = |text: &str| text.parse::<Step>().unwrap();
    for (fs, fill) in [(&one, 1), (&two, 2)] {
        let mut session = onggi_model::Session::new(fs, fs.root(), Compare::ALL);
        session.run(&line("1 0:0 create /a file 644"));
        session.run(&line(&format!("2 0:0 write /a 5000 10 {fill}")));
        session.run(&line("3 0:0 link /a /b"));
    }
    let (one, two) =
        (onggi_model::tree(&one, one.root()).unwrap(), onggi_model::tree(&two, two.root()).unwrap());
    let found = one.diff(&two, Compare::ALL);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("/a: 1 blocks of contents differ, first at byte 5000"), "{found:?}");
    assert!(one.diff(&one, Compare::ALL).is_empty());
}
