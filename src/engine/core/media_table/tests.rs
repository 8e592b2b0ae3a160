//! Numbers of media, and what waits for a tower.

use super::*;
use serde_json::json;
use vllm_batch_media::{Backend, MediaKind, Tower};

fn png(width: u32, height: u32, value: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let pixels = vec![value; (width * height * 3) as usize];
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    bytes
}

/// A table whose images become 16 by 16 pixels, in patches of 4, of which 2 by 2 are a token: 4
/// tokens, 768 bytes.
pub(crate) fn table(max_input_bytes: usize) -> Arc<MediaTable> {
    let config = json!({"image_processor_type": "SiglipImageProcessor",
        "size": {"height": 16, "width": 16}});
    let tower = Tower { patch_size: 4, merge_size: 2, max_tiles: None };
    let processor = ImageProcessor::from_config(&config, tower, Backend::Torchvision).unwrap();
    Arc::new(MediaTable::new(Processors::of_images(processor), max_input_bytes))
}

/// An image of one value.
pub(crate) fn medium(value: u8) -> Arc<Medium> {
    Arc::new(Medium::new(MediaKind::Image, png(20, 20, value), Default::default()).unwrap())
}

fn patches(medium: &TableMedium) -> Patches {
    medium.take_input().unwrap().patches()
}

fn numbers(placed: &[Arc<TableMedium>]) -> Vec<u64> {
    placed.iter().map(|medium| medium.number()).collect()
}

#[test]
fn equal_images_have_one_number_also_after_their_requests() {
    let table = table(usize::MAX);
    let first = table.place(&[medium(1), medium(2), medium(1)]).unwrap();
    assert_eq!(numbers(&first), [0, 4, 0]);
    assert_eq!(first[1].first_token_id(), FIRST_ID + 4);
    assert!(Arc::ptr_eq(&first[0], &first[2]) && table.get(4).is_some());
    drop(first);
    assert!(table.get(0).is_none() && table.get(4).is_none());
    assert_eq!(numbers(&table.place(&[medium(3), medium(2)]).unwrap()), [8, 4]);
    assert!(table.state().under_way.is_empty());
}

/// LLaVA-OneVision: an image is cut into tiles, and each of several is one square.
#[test]
fn an_image_that_is_cut_in_another_way_among_others_is_another() {
    let config = json!({"image_processor_type": "LlavaOnevisionImageProcessor",
        "size": {"height": 16, "width": 16}, "image_grid_pinpoints": [[16, 32]]});
    let tower = Tower { patch_size: 4, merge_size: 2, max_tiles: None };
    let processor = ImageProcessor::from_config(&config, tower, Backend::Torchvision).unwrap();
    let table = Arc::new(MediaTable::new(Processors::of_images(processor), usize::MAX));
    let tokens = |placed: &[Arc<TableMedium>]| {
        placed.iter().map(|medium| medium.form().num_tokens()).collect::<Vec<_>>()
    };
    let alone = table.place(&[medium(1)]).unwrap();
    let among = table.place(&[medium(1), medium(1)]).unwrap();
    assert_eq!((tokens(&alone), tokens(&among)), (vec![10], vec![5, 5]));
    assert_eq!((numbers(&alone), numbers(&among)), (vec![0], vec![10, 10]));
    assert_eq!(patches(&among[0]).layout, among[0].form().layout());
}

#[test]
fn patches_wait_where_there_is_room_and_are_made_again_where_there_is_none() {
    let table = table(1000);
    let placed = table.place(&[medium(1), medium(2)]).unwrap();
    assert_eq!(table.state().input_bytes, 768);
    let patches = [&placed[0], &placed[1], &placed[0]].map(|medium| patches(medium));
    assert_eq!(table.state().input_bytes, 0);
    assert_eq!(patches.each_ref().map(|patches| patches.samples[0]), [1, 2, 1]);
    let again = table.place(&[medium(3)]).unwrap();
    assert_eq!(table.state().input_bytes, 768);
    drop(again);
    assert_eq!(table.state().input_bytes, 0);
}

#[test]
fn a_damaged_image_is_found_when_it_is_placed() {
    let table = table(usize::MAX);
    let mut bytes = png(20, 20, 1);
    bytes.truncate(bytes.len() - 20);
    let cut = Arc::new(Medium::new(MediaKind::Image, bytes, Default::default()).unwrap());
    for _ in 0..2 {
        let (index, error) = table.place(&[medium(1), Arc::clone(&cut)]).unwrap_err();
        assert_eq!((index, error.code()), (1, "media_decode"));
    }
    assert!(table.state().under_way.is_empty());
}

#[test]
fn media_of_a_request_are_of_one_epoch() {
    let table = table(usize::MAX);
    table.state().next = NUM_IDS - 5;
    let last = table.place(&[medium(1)]).unwrap();
    assert_eq!((last[0].epoch(), last[0].first_token_id()), (0, u32::MAX - 4));
    let next = table.place(&[medium(2), medium(1)]).unwrap();
    assert_eq!(numbers(&next), [NUM_IDS, NUM_IDS + 4]);
    assert_eq!((next[1].epoch(), next[1].first_token_id()), (1, FIRST_ID + 4));
    // Both are there: the earlier one is still under way.
    assert!(table.get(NUM_IDS - 5).is_some() && table.get(NUM_IDS + 4).is_some());
}

#[test]
fn threads_may_place_and_drop_the_same_images() {
    let table = table(1000);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let table = &table;
            scope.spawn(move || {
                for round in 0..50u8 {
                    let media = [medium(round % 3), medium(thread)];
                    let placed = table.place(&media).unwrap();
                    for (medium, value) in placed.iter().zip([round % 3, thread]) {
                        assert_eq!(patches(medium).samples[0], value);
                        assert!(table.get(medium.number()).is_some());
                    }
                }
            });
        }
    });
    let state = table.state();
    assert_eq!((state.under_way.len(), state.input_bytes), (0, 0));
}

/// Bytes that say when they are read, and wait until they may be.
#[derive(Debug)]
struct Held {
    bytes: Vec<u8>,
    reads: Mutex<std::sync::mpsc::Sender<std::thread::ThreadId>>,
    gate: Arc<(Mutex<bool>, std::sync::Condvar)>,
}

impl vllm_batch_media::Encoded for Held {
    fn read(&self, _: &vllm_batch_media::Limits) -> Result<std::borrow::Cow<'_, [u8]>, MediaError> {
        self.reads.lock().unwrap().send(std::thread::current().id()).unwrap();
        let (is_open, opened) = &*self.gate;
        let is_open = is_open.lock().unwrap();
        drop(opened.wait_while(is_open, |is_open| !*is_open).unwrap());
        Ok(std::borrow::Cow::Borrowed(&self.bytes))
    }
}

#[test]
fn an_image_that_is_decoded_ahead_is_waited_for_and_decoded_once() {
    let table = table(usize::MAX);
    let (reads, read) = std::sync::mpsc::channel();
    let gate = Arc::new((Mutex::new(true), std::sync::Condvar::new()));
    let held = |value| Held {
        bytes: png(20, 20, value),
        reads: Mutex::new(reads.clone()),
        gate: Arc::clone(&gate),
    };
    let media = [Arc::new(Medium::new(MediaKind::Image, held(1), Default::default()).unwrap())];
    assert_eq!(read.recv().unwrap(), std::thread::current().id());
    *gate.0.lock().unwrap() = false;
    let ahead = table.decode_ahead(&media);
    // A thread has begun, and waits.
    assert_ne!(read.recv().unwrap(), std::thread::current().id());
    std::thread::scope(|scope| {
        let placing = scope.spawn(|| table.place(&media).unwrap());
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
        let placed = placing.join().unwrap();
        assert!(Arc::ptr_eq(&placed[0], &ahead[0]));
    });
    assert!(read.try_recv().is_err(), "it is read once");
    assert_eq!(patches(&ahead[0]).samples[0], 1);
}

#[test]
fn what_is_wrong_with_an_image_that_was_decoded_ahead_is_said_by_its_request() {
    let table = table(usize::MAX);
    let mut bytes = png(20, 20, 1);
    bytes.truncate(bytes.len() - 30);
    let media =
        [medium(2), Arc::new(Medium::new(MediaKind::Image, bytes, Default::default()).unwrap())];
    let ahead = table.decode_ahead(&media);
    assert_eq!(ahead.len(), 2);
    let (index, error) = table.place(&media).unwrap_err();
    assert_eq!((index, error.code()), (1, "media_decode"));
    assert_eq!(numbers(&table.place(&media[..1]).unwrap()), [0]);
}
