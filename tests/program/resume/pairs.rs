//! Two processes that are started together on one output: one of them makes it.

use crate::resume::program::{Ended, wait};
use crate::resume::rows::rows;
use crate::resume::work::{Expected, Left, Work};

const NUM_PAIRS: usize = 20;

/// One process made the output; the other was kept out, or came when it was complete.
fn assert_one_of_two(expected: &Expected, ended: &[Ended; 2]) {
    let is_done = |ended: &&Ended| ended.status.code() == Some(expected.code);
    let has_nothing_to_do = |ended: &&Ended| ended.stderr.contains("Nothing to do: ");
    let num_done = ended.iter().filter(is_done).count();
    for refused in ended.iter().filter(|ended| !is_done(ended)) {
        refused.assert_exit(6);
        refused.assert_says("error[output_locked]: another run has out.jsonl\nhelp: ");
    }
    assert_eq!(
        num_done,
        1 + ended.iter().filter(is_done).filter(has_nothing_to_do).count(),
        "one computes: {ended:?}"
    );
}

#[test]
fn of_two_processes_on_one_output_one_is_kept_out() {
    let works = [20, 2, 60].map(|number| Work::sampled(rows(9, number, true)));
    let works = works.map(|work| (work.undisturbed(), work));
    for pair in 0..NUM_PAIRS {
        let (expected, work) = &works[pair % works.len()];
        let folder = work.folder();
        let folder = folder.path();
        let processes = [0, 1].map(|_| work.command_without_stats(folder).spawn().unwrap());
        let ended = processes.map(wait);
        assert_one_of_two(expected, &ended);
        let done = ended.iter().find(|ended| ended.status.code() == Some(expected.code)).unwrap();
        expected.assert_complete(work, folder, done);
        work.finish_after(expected, folder, &Left { has_name: true, ..Left::default() });
    }
}
