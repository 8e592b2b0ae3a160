//! Images in sequences: what a step has of them, and which prefixes they share.

use std::sync::Arc;

use vllm_batch_api::request::{NumLogprobs, SamplingParams};
use vllm_batch_ops::batch::{Batch, MediaRows};

use super::{end_step, request, run, scheduler};
use crate::media_table::tests::{medium, table};
use crate::plan::scheduler::Scheduler;
use crate::request::{FIRST_MEDIA_ID, MediaRun, Request, TableMedium, Whole, axes_of};

/// The placeholder in prompts.
const IMAGE: u32 = 7;

/// 10 11, an image, 12, another in two runs, 13.
fn with_images(id: u64, placed: &[Arc<TableMedium>], max_tokens: u32) -> Request {
    let i = IMAGE;
    let prompt = vec![10, 11, i, i, i, i, 12, i, i, 14, i, i, 13];
    let run = |index: usize, positions, first_token| MediaRun {
        medium: Arc::clone(&placed[index]),
        positions,
        first_token,
        axis: None,
        whole: Whole::None,
    };
    let media = vec![run(0, 2..6, 0), run(1, 7..9, 0), run(1, 10..12, 2)];
    let params = SamplingParams {
        max_tokens: Some(max_tokens),
        prompt_logprobs: Some(NumLogprobs::Top(0)),
        ..SamplingParams::default()
    };
    Request { media, ..request(id, prompt, params) }
}

fn step(scheduler: &mut Scheduler) -> Batch {
    let step = scheduler.schedule();
    let batch = scheduler.batch(&step);
    end_step(scheduler, &step, 5);
    batch
}

#[test]
fn a_step_has_placeholders_and_says_whose_they_are() {
    let mut s = scheduler(2, 4, 16);
    let table = table(0);
    let request = with_images(1, &table.place(&[1, 2].map(medium)).unwrap(), 1);
    let prompt = request.prompt_token_ids.clone();
    s.add_request(request);
    let rows = |medium, first_token, rows| MediaRows { medium, first_token, rows };
    // Prompt logprobs are of 4 tokens a step, as many as there is room for.
    let expected = [
        vec![rows(0, 0, 2..4)],
        vec![rows(0, 2, 0..2), rows(4, 0, 3..4)],
        vec![rows(4, 1, 0..1), rows(4, 2, 2..4)],
        vec![],
    ];
    let mut ids = Vec::new();
    for media in expected {
        let batch = step(&mut s);
        assert_eq!(batch.media, media);
        ids.extend(batch.input_ids);
    }
    assert_eq!(ids, prompt);
    assert!(!s.has_unfinished_requests());
}

#[test]
fn logprobs_of_a_prompt_are_those_of_placeholders() {
    let mut s = scheduler(2, 64, 16);
    s.add_request(with_images(1, &table(0).place(&[1, 2].map(medium)).unwrap(), 1));
    let outputs = run(&mut s, 5);
    assert_eq!(outputs[0].prompt_token_ids[..4], [10, 11, IMAGE, IMAGE]);
    let logprobs = outputs[0].prompt_logprobs.as_ref().unwrap().iter();
    let ids: Vec<_> = logprobs.flatten().map(|logprobs| logprobs.token.token_id).collect();
    assert_eq!(ids, outputs[0].prompt_token_ids[1..]);
}

#[test]
fn equal_images_share_blocks_and_others_do_not() {
    let table = table(0);
    let cached = |first: [u8; 2], second: [u8; 2]| {
        let mut s = scheduler(2, 64, 32);
        let mut run = |id: u64, values: [u8; 2]| {
            let request = with_images(id, &table.place(&values.map(medium)).unwrap(), 1);
            let params = SamplingParams { max_tokens: Some(1), ..SamplingParams::default() };
            s.add_request(Request { params: Arc::new(params), ..request });
            run(&mut s, 5)[0].num_cached_tokens
        };
        assert_eq!(run(1, first), 0);
        run(2, second)
    };
    // Blocks have 4 tokens: the first image begins in the first and ends in the second.
    assert_eq!(cached([1, 2], [1, 2]), 12);
    assert_eq!(cached([1, 2], [1, 3]), 4);
    assert_eq!(cached([1, 2], [2, 1]), 0);
}

#[test]
fn later_epochs_share_nothing() {
    let roots = [0, 1].map(|epoch| {
        let table = table(0);
        table.begin_epoch(epoch);
        let request = with_images(1, &table.place(&[1, 2].map(medium)).unwrap(), 1);
        assert_eq!(request.media[0].token_ids(), FIRST_MEDIA_ID..FIRST_MEDIA_ID + 4);
        request.prefix_root()
    });
    assert_ne!(roots[0], roots[1]);
}

#[test]
fn positions_on_axes_go_on_through_chunks_prefixes_and_answers() {
    let table = table(0);
    let with_axes = |id: u64, max_tokens: u32| {
        let request = with_images(id, &table.place(&[1, 2].map(medium)).unwrap(), max_tokens);
        let mut media = vec![request.media[0].clone()];
        MediaRun::place_on_axes(&mut media);
        let params = SamplingParams { max_tokens: Some(max_tokens), ..SamplingParams::default() };
        Request { media, params: Arc::new(params), ..request }
    };
    for num_tokens in [1, 3, 64] {
        let mut s = scheduler(2, num_tokens, 32);
        let expected = with_axes(1, 3);
        s.add_request(expected.clone());
        // The second finds the first's blocks, and runs beside a row of text.
        for id in [None, Some(2)] {
            if let Some(id) = id {
                s.add_request(with_axes(id, 3));
                let params = SamplingParams { max_tokens: Some(9), ..SamplingParams::default() };
                s.add_request(request(3, vec![1; 3], params));
            }
            let mut seen = Vec::new();
            while s.has_unfinished_requests() {
                let batch = step(&mut s);
                let has_axes = batch.axes.len() == batch.num_tokens();
                assert!(has_axes || batch.axes.is_empty());
                for seq in 0..batch.num_seqs() {
                    let tokens = batch.query_start_loc[seq]..batch.query_start_loc[seq + 1];
                    for token in tokens.map(|token| token as usize) {
                        let position = batch.positions[token];
                        let is_text =
                            batch.input_ids[..].contains(&1) && seq + 1 == batch.num_seqs();
                        match batch.axes.get(token) {
                            None => assert!(is_text || id.is_some()),
                            Some(axes) if *axes == [position; 3] => {}
                            Some(axes) => {
                                seen.push(position);
                                assert_eq!(*axes, axes_of(&expected.media, position as usize));
                            }
                        }
                    }
                }
            }
            // All behind the first token of the image, as far as they were computed.
            let last = 14;
            let first = if id.is_some() { 12 } else { 3 };
            assert!((first..=last).all(|position| seen.contains(&position)), "{seen:?}");
        }
    }
}

/// The tokens of each image attend to all of it.
fn with_whole_images(id: u64, placed: &[Arc<TableMedium>], max_tokens: u32) -> Request {
    let mut request = with_images(id, placed, max_tokens);
    request.media.iter_mut().for_each(|run| run.whole = Whole::Image);
    request
}

#[test]
fn an_image_that_is_attended_to_whole_is_in_one_step() {
    let mut s = scheduler(2, 4, 16);
    s.add_request(with_whole_images(1, &table(0).place(&[1, 2].map(medium)).unwrap(), 1));
    let ends = |batch: &Batch| {
        let ends = (0..batch.num_tokens()).map(|token| batch.attended_end(token));
        (batch.positions.clone(), ends.collect::<Vec<_>>())
    };
    assert_eq!(ends(&step(&mut s)), (vec![0, 1], vec![1, 2]));
    assert_eq!(ends(&step(&mut s)), (vec![2, 3, 4, 5], vec![6; 4]));
    assert_eq!(ends(&step(&mut s)), (vec![6, 7, 8, 9], vec![7, 9, 9, 10]));
    assert_eq!(ends(&step(&mut s)), (vec![10, 11, 12], vec![12, 12, 13]));
    assert!(!s.has_unfinished_requests());
}

/// All of the prompt, and no other request shares what its tokens make of each other.
#[test]
fn a_prompt_that_is_attended_to_whole_is_in_one_step() {
    let mut s = scheduler(3, 8, 16);
    let placed = table(0).place(&[medium(1)]).unwrap();
    let prefix = |id, number| {
        let run = MediaRun {
            medium: Arc::clone(&placed[0]),
            positions: 0..4,
            first_token: 0,
            axis: None,
            whole: Whole::Prompt { len: 6, number },
        };
        let params = SamplingParams { max_tokens: Some(2), ..SamplingParams::default() };
        let prompt = vec![IMAGE, IMAGE, IMAGE, IMAGE, 12, 13];
        Request { media: vec![run], ..request(id, prompt, params) }
    };
    let params = SamplingParams { max_tokens: Some(1), ..SamplingParams::default() };
    s.add_request(request(0, vec![20, 21, 22], params));
    s.add_request(prefix(1, 0));
    s.add_request(prefix(2, 1));
    let ends = |batch: &Batch| {
        let ends = (0..batch.num_tokens()).map(|token| batch.attended_end(token));
        (batch.positions.clone(), ends.collect::<Vec<_>>())
    };
    // Five tokens of the second row had room, but it needs six.
    assert_eq!(ends(&step(&mut s)), (vec![0, 1, 2], vec![1, 2, 3]));
    let batch = step(&mut s);
    assert_eq!(ends(&batch), (vec![0, 1, 2, 3, 4, 5], vec![6; 6]));
    assert_eq!((batch.prefix_len(0), batch.prefix_len(1)), (6, 0));
    // The third row has the same prompt, and begins anew.
    let batch = step(&mut s);
    assert_eq!(ends(&batch), (vec![6, 0, 1, 2, 3, 4, 5], vec![7, 6, 6, 6, 6, 6, 6]));
    run(&mut s, 5);
    assert!(!s.has_unfinished_requests());
}

#[test]
fn an_image_waits_for_a_step_with_room_and_goes_on_from_a_cached_part() {
    let mut s = scheduler(3, 6, 16);
    let table = table(0);
    let placed = table.place(&[medium(1)]).unwrap();
    let image = |id, max_tokens| {
        let run = |positions| MediaRun {
            medium: Arc::clone(&placed[0]),
            positions,
            first_token: 0,
            axis: None,
            whole: Whole::Image,
        };
        let params = SamplingParams { max_tokens: Some(max_tokens), ..SamplingParams::default() };
        let prompt = vec![10, 11, IMAGE, IMAGE, IMAGE, IMAGE, 12];
        Request { media: vec![run(2..6)], ..request(id, prompt, params) }
    };
    let params = SamplingParams { max_tokens: Some(2), ..SamplingParams::default() };
    s.add_request(request(0, vec![20, 21, 22], params));
    s.add_request(image(1, 3));
    // Two tokens of the second row; the image has to wait, though one token of it had room.
    assert_eq!(step(&mut s).positions, [0, 1, 2, 0, 1]);
    assert_eq!(step(&mut s).positions, [3, 2, 3, 4, 5, 6]);
    // The first block of the next row is known, and ends within the image.
    s.add_request(image(2, 1));
    let batch = step(&mut s);
    assert_eq!(batch.positions, [7, 4, 5, 6]);
    let ends: Vec<_> = (0..4).map(|token| batch.attended_end(token)).collect();
    assert_eq!(ends, [8, 6, 6, 7]);
    run(&mut s, 5);
    assert!(!s.has_unfinished_requests());
}
