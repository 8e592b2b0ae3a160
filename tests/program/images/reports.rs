//! What other programs were reported to do with images, and this one must not: answer another
//! image's question, lose an orientation, take a whole input's pixels into memory.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use vllm_batch::cli::input::base64;

use super::{SEES, codes, folder, picture, program, rows, write_rows};

const MEDIA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/media");

fn png(width: u32, height: u32, pixels: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
    bytes
}

/// Width, height and bytes of a PNG as it is stored, with so many bytes for each pixel.
fn stored(name: &str, channels: usize) -> (u32, u32, Vec<u8>) {
    let file = fs::File::open(format!("{MEDIA}/{name}")).unwrap();
    let mut png = png::Decoder::new(std::io::BufReader::new(file)).read_info().unwrap();
    let mut pixels = vec![0; png.output_buffer_size().unwrap()];
    let frame = png.next_frame(&mut pixels).unwrap();
    assert_eq!(pixels.len(), (frame.width * frame.height) as usize * channels, "{name}");
    (frame.width, frame.height, pixels)
}

/// Alpha on white, as Pillow rounds it.
fn on_white(pixels: &[u8]) -> Vec<u8> {
    let blend = |color: u8, alpha: u8| {
        let sum = 255 * (255 - u32::from(alpha)) + u32::from(color) * u32::from(alpha) + 128;
        (((sum >> 8) + sum) >> 8) as u8
    };
    let pixel = |rgba: &[u8]| [0, 1, 2].map(|channel| blend(rgba[channel], rgba[3]));
    pixels.chunks_exact(4).flat_map(pixel).collect()
}

/// Turned to the right.
fn turned(width: u32, height: u32, pixels: &[u8]) -> Vec<u8> {
    let (width, height) = (width as usize, height as usize);
    let from = |at: usize| {
        let (x, y) = (at % height, at / height);
        let at = ((height - 1 - x) * width + y) * 3;
        pixels[at..at + 3].to_vec()
    };
    (0..width * height).flat_map(from).collect()
}

/// Vectors of pictures, each the only image of its row, and the codes of the rows.
fn vectors(folder: &Path, images: &[Value]) -> (Vec<Value>, Vec<String>) {
    let lines: Vec<Value> = images.iter().map(|image| json!({"image": image})).collect();
    write_rows(folder, &lines);
    let fixed = ["embed", "-q", "--model", SEES, "-i", "data/in.jsonl"];
    let said = program(folder, &[&fixed[..], &["--allowed-local-media-path", MEDIA]].concat());
    let vectors = rows(&said.out).iter().map(|row| row["embedding"].clone()).collect();
    (vectors, codes(&said.out))
}

/// vllm PR#18569 and #47566, sglang#33464, llama.cpp#20870.
#[test]
fn an_image_is_what_people_see() {
    let folder = folder(&[]);
    let data = folder.path().join("data");
    let (width, height, pixels) = stored("rgba.png", 4);
    fs::write(data.join("white.png"), png(width, height, &on_white(&pixels))).unwrap();
    let (width, height, pixels) = stored("exif6.png", 3);
    fs::write(data.join("turned.png"), png(height, width, &turned(width, height, &pixels)))
        .unwrap();
    let of_media = |name: &str| json!(format!("{MEDIA}/{name}"));
    let bytes = |name: &str| json!(base64::encode(&fs::read(format!("{MEDIA}/{name}")).unwrap()));
    for (image, same) in [
        (of_media("rgba.png"), json!("white.png")),
        (bytes("rgba.png"), json!("white.png")),
        (of_media("exif6.png"), json!("turned.png")),
        (bytes("exif6.png"), json!("turned.png")),
        // The first frame of an animation.
        (of_media("animated.png"), of_media("exif1.png")),
    ] {
        let (found, codes) = vectors(folder.path(), &[image.clone(), same]);
        assert_eq!(codes, ["ok", "ok"]);
        assert_eq!(found[0], found[1], "{image}");
    }
}

/// GHSA-c65p-x677-fgj6: equal pixels of another shape. vllm-mlx#126: equal first characters.
/// LMCache#3301, smg#2371: parts that are joined.
#[test]
fn images_that_begin_alike_are_not_one() {
    let folder = folder(&[]);
    let pixels: Vec<u8> = (0..30 * 150 * 3).map(|at| (at * 7 % 251) as u8).collect();
    let mut other = picture(80, 5);
    // In the last pixels of a file that is not compressed.
    let uri = |bytes: &[u8]| json!(format!("data:image/png;base64,{}", base64::encode(bytes)));
    let first = uri(&other);
    let (_, _, mut noise) = {
        let mut decoder = png::Decoder::new(std::io::Cursor::new(&other)).read_info().unwrap();
        let mut pixels = vec![0; decoder.output_buffer_size().unwrap()];
        let frame = decoder.next_frame(&mut pixels).unwrap();
        (frame.width, frame.height, pixels)
    };
    let end = noise.len() - 80 * 3 * 8;
    noise[end..].iter_mut().for_each(|value| *value = !*value);
    other = png(80, 80, &noise);
    let second = uri(&other);
    let same = first.as_str().unwrap().bytes().zip(second.as_str().unwrap().bytes());
    let num_same = same.take_while(|(a, b)| a == b).count();
    assert!(num_same > 4000, "{num_same}");
    let images = [
        uri(&png(30, 150, &pixels)),
        uri(&png(150, 30, &pixels)),
        first.clone(),
        second.clone(),
        json!([first, second]),
        json!([second, first]),
    ];
    let (found, codes) = vectors(folder.path(), &images);
    assert!(codes.iter().all(|code| code == "ok"), "{codes:?}");
    for (index, vector) in found.iter().enumerate() {
        assert!(!found[..index].contains(vector), "image {index}");
    }
}

/// vllm#15080, ollama#11297, Rapid-MLX#739, Qwen3-VL#220, vllm PR#38253.
#[test]
fn odd_shapes_and_cut_files_are_answered_or_error_rows() {
    let folder = folder(&[]);
    let data = folder.path().join("data");
    let shapes = [(1, 1), (1, 300), (300, 1), (27, 27), (690, 15_420)];
    for (width, height) in shapes {
        let pixels = vec![90; width * height * 3];
        fs::write(data.join(format!("{width}.png")), png(width as u32, height as u32, &pixels))
            .unwrap();
    }
    let whole = fs::read(format!("{MEDIA}/24_420_20x16_q95.jpg")).unwrap();
    fs::write(data.join("cut.jpg"), &whole[..whole.len() * 2 / 3]).unwrap();
    let shapes = shapes.iter().map(|(width, _)| json!(format!("{width}.png")));
    let images: Vec<Value> = shapes.chain([json!("cut.jpg"), json!("a.png")]).collect();
    let (found, codes) = vectors(folder.path(), &images);
    assert_eq!(codes[..5], ["ok"; 5]);
    assert_eq!(codes[5..], ["media_decode", "ok"]);
    assert!(found[6].is_array());
}

/// vllm#16185, #30268: all of an input's pixels at once. Here they would be 860 MB.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[test]
fn the_images_of_an_input_are_never_all_in_memory() {
    let folder = folder(&[]);
    let data = folder.path().join("data");
    let mut lines = Vec::new();
    for number in 0..24u8 {
        let pixels = vec![number; 4000 * 3000 * 3];
        fs::write(data.join(format!("{number}.png")), png(4000, 3000, &pixels)).unwrap();
        lines.push(json!({"prompt": "?", "image": format!("{number}.png"), "max_tokens": 1}));
    }
    write_rows(folder.path(), &lines);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 700000; exec \"$0\" \"$@\""]);
    command.arg(assert_cmd::cargo::cargo_bin!("vllm-batch"));
    command.args(["run", "-qq", "--model", SEES, "-i", "data/in.jsonl", "--threads", "2"]);
    let output = command.current_dir(folder.path()).stdin(Stdio::null()).output().unwrap();
    let (out, errors) = (output.stdout, String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert_eq!(codes(&String::from_utf8(out).unwrap()), ["ok"; 24]);
}
