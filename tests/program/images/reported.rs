//! Pictures in the page of `eval`.

use std::fs;

use serde_json::{Value, json};
use vllm_batch::cli::input::base64;

use super::{SEES, folder, picture, program, rows};

/// A picture of one colour.
fn plain(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    let pixels = vec![90; (width * height * 3) as usize];
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    bytes
}

/// Width and height of a PNG in base64, all of which can be decoded.
fn size(text: &Value) -> (u32, u32) {
    let bytes = base64::decode(text.as_str().unwrap()).unwrap();
    let mut png = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
    let mut pixels = vec![0; png.output_buffer_size().unwrap()];
    let frame = png.next_frame(&mut pixels).unwrap();
    (frame.width, frame.height)
}

#[test]
fn the_page_shows_the_images_of_its_rows() {
    let hostile = "\"><img src=x onerror=alert(1)>.png";
    let uri = format!("data:image/png;base64,{}", base64::encode(&picture(5, 2)));
    let expected = |id: u32, mut row: Value| {
        row["id"] = id.into();
        row["expected"] = "a".into();
        row
    };
    let asked = [
        json!({"prompt": "What is it?", "images": ["wide.png", uri]}),
        json!({"prompt": "Is it text?"}),
        json!({"prompt": "What is it?", "image": "cut.png"}),
        json!({"prompt": "What is it?", "image": "../secret.png"}),
        json!({"prompt": "What is it?", "image": hostile}),
        json!({"prompt": "What is it?", "image": "http://127.0.0.1:1/at/a.png?b=c.png"}),
        json!({"prompt": "Which?", "images": ["a.png", "a.png", "a.png", "a.png", "a.png"]}),
    ];
    let asked: Vec<Value> = (0..).zip(asked).map(|(id, row)| expected(id, row)).collect();
    let folder = folder(&asked);
    let data = folder.path().join("data");
    fs::write(data.join("wide.png"), plain(400, 100)).unwrap();
    fs::write(data.join(hostile), plain(3, 9)).unwrap();
    let whole = picture(9, 4);
    fs::write(data.join("cut.png"), &whole[..whole.len() / 2]).unwrap();
    let eval = ["eval", "-q", "--model", SEES, "-i", "data/in.jsonl", "-o", "out.jsonl"];
    let flags = ["--max-tokens", "2", "--temperature", "0", "--report", "r.html"];
    let said = program(folder.path(), &[&eval[..], &flags].concat());
    assert_eq!(said.code, 3, "{}", said.errors);
    let page = fs::read_to_string(folder.path().join("r.html")).unwrap();
    assert!(page.contains("img-src data:") && !page.contains("<img src"), "{page}");
    let (_, of_page) = page.split_once("id=\"data\">").unwrap();
    let (of_page, _) = of_page.split_once("</script>").unwrap();
    let of_page: Value = serde_json::from_str(of_page).unwrap();
    let images = |row: usize| of_page["rows"][row]["images"].clone();
    assert_eq!(size(&images(0)[0]["png"]), (96, 24));
    assert_eq!(size(&images(0)[1]["png"]), (5, 5), "none is larger than its image");
    assert_eq!(
        (&images(0)[0]["name"], &images(0)[1]["name"]),
        (&json!("wide.png"), &json!("image 2"))
    );
    assert_eq!(images(1), Value::Null);
    assert_eq!(images(2), json!([{"name": "cut.png", "why": "media_decode"}]));
    assert_eq!(images(3), json!([{"name": "secret.png", "why": "media_forbidden"}]));
    assert_eq!((size(&images(4)[0]["png"]), &images(4)[0]["name"]), ((3, 9), &json!(hostile)));
    assert_eq!(images(5), json!([{"name": "a.png", "why": "at a URL"}]));
    assert!(images(6)[3]["png"].is_string());
    assert_eq!(images(6)[4], json!({"name": "a.png", "why": "not shown"}));
    // Verdicts are given again without a look at an image.
    let again = ["eval", "--model", SEES, "--rescore", "out.jsonl", "-o", "again.jsonl"];
    let said = program(folder.path(), &[&again[..], &["--report", "again.html"]].concat());
    assert_eq!(said.code, 3, "{}", said.errors);
    let page = fs::read_to_string(folder.path().join("again.html")).unwrap();
    assert!(page.contains("What is it?") && !page.contains("\"png\":"), "{page}");
    // Of a shard, those of its own rows.
    let flags = [&flags[..], &["--shard", "1/2", "-o", "shard.jsonl", "--overwrite"]].concat();
    let said = program(folder.path(), &[&eval[..], &flags].concat());
    assert_eq!(said.code, 3, "{}", said.errors);
    let text = fs::read_to_string(folder.path().join("shard.jsonl")).unwrap();
    assert_eq!(rows(&text).len(), 3);
    let page = fs::read_to_string(folder.path().join("r.html")).unwrap();
    assert!(page.contains("secret.png") && !page.contains("wide.png"), "{page}");
}
