//! Against the processors of transformers: layouts, and the floats that a tower gets.

use serde_json::{Value, json};

use super::*;
use crate::formats::Format;
use crate::goldens::{hash, lines, noise, number};

fn processor(line: &Value) -> ImageProcessor {
    let config = serde_json::from_str(line["config"].as_str().expect("text")).expect("JSON");
    let tower = Tower {
        patch_size: number(&line["patch"]),
        merge_size: number(&line["merge"]),
        max_tiles: line["most"].as_u64().map(|num| num as usize),
    };
    let backend = match line["backend"].as_str() {
        Some("pillow") => Backend::Pillow,
        _ => Backend::Torchvision,
    };
    ImageProcessor::from_config(&config, tower, backend).expect("a known config")
}

fn header(width: usize, height: usize) -> ImageHeader {
    ImageHeader { format: Format::Png, width: width as u32, height: height as u32 }
}

#[test]
fn tokens_and_floats_are_those_of_transformers() {
    let mut differing = Vec::new();
    for line in lines("processed.jsonl") {
        let processor = processor(&line);
        let image = noise(&line);
        let layout = processor
            .tokens(&header(image.width(), image.height()), Company::None)
            .expect("a layout");
        let grids = line["grids"].as_array().expect("grids");
        assert_eq!(layout.num_tiles(), grids.len(), "{line}");
        let grid = |tile| json!(layout.grid(tile));
        assert!((0..).map(grid).zip(grids).all(|(grid, other)| grid == *other), "{line}");
        assert_eq!(layout.num_tokens(), number(&line["tokens"]), "{line}");
        let patches = processor.patches(&image, Company::None).expect("patches");
        assert_eq!(patches.layout, layout, "{line}");
        assert_eq!(patches.num_bytes(), processor.num_patch_bytes(layout));
        let floats = patches.floats(processor.normalization());
        assert_eq!(floats.len(), number(&line["shape"][0]) * number(&line["shape"][1]), "{line}");
        let bytes: Vec<u8> = floats.iter().flat_map(|number| number.to_le_bytes()).collect();
        if line["blake3"] != hash(&bytes) {
            differing.push(line.to_string());
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}

fn smart(patch_size: usize, min_pixels: usize, max_pixels: usize) -> ImageProcessor {
    let config = json!({
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "min_pixels": min_pixels,
        "max_pixels": max_pixels,
        "processor_class": "Qwen2_5_VLProcessor",
    });
    let tower = Tower { patch_size, merge_size: 2, max_tiles: None };
    ImageProcessor::from_config(&config, tower, Backend::Torchvision).expect("a known config")
}

/// Heights and widths before and after, as the formula of Qwen gives them.
#[test]
fn sides_of_qwen_are_rounded_to_even() {
    for (processor, from, to) in [
        (smart(14, 3136, 12_845_056), (14, 300), (28, 280)),
        (smart(14, 3136, 12_845_056), (13, 2000), (28, 700)),
        (smart(14, 3136, 12_845_056), (1, 1), (56, 56)),
        (smart(14, 3136, 12_845_056), (1, 200), (28, 812)),
        (smart(14, 3136, 12_845_056), (70, 70), (56, 56)),
        (smart(16, 65_536, 16_777_216), (42, 42), (256, 256)),
        (smart(16, 65_536, 16_777_216), (14, 300), (64, 1216)),
    ] {
        let layout = processor.tokens(&header(from.1, from.0), Company::None).expect("a layout");
        let side = processor.tower.patch_size;
        assert_eq!((layout.rows * side, layout.columns * side), to, "{from:?}");
    }
    // A side that would shrink below a token stays one.
    let layout =
        smart(14, 3136, 1_003_520).tokens(&header(690, 100_000), Company::None).expect("a layout");
    assert!(layout.columns >= 2 && layout.rows * layout.columns * 196 <= 1_100_000, "{layout:?}");
}

#[test]
fn an_image_that_cannot_be_resized_is_refused() {
    let error =
        smart(14, 3136, 12_845_056).tokens(&header(1, 201), Company::None).expect_err("too thin");
    assert_eq!(error.code(), "media_unsupported");
    let clip = json!({"feature_extractor_type": "CLIPFeatureExtractor"});
    let tower = Tower { patch_size: 14, merge_size: 1, max_tiles: None };
    let clip = ImageProcessor::from_config(&clip, tower, Backend::Torchvision).expect("defaults");
    // The long side would have 14 million pixels, only to be cropped.
    let error = clip.tokens(&header(1, 65_500), Company::None).expect_err("too thin");
    assert_eq!(error.code(), "media_too_large");
    assert_eq!(clip.tokens(&header(300, 300), Company::None).expect("a layout").num_tokens(), 256);
}

#[test]
fn what_a_config_says_and_nobody_reads_is_refused_by_name() {
    let tower = Tower { patch_size: 14, merge_size: 2, max_tiles: None };
    for (key, value, named) in [
        ("image_processor_type", json!("WhisperFeatureExtractor"), "WhisperFeatureExtractor"),
        ("do_pan_and_scan", json!(true), "do_pan_and_scan"),
        ("do_pad", json!(true), "do_pad"),
        ("size", json!({"longest_edge": 8}), "longest_edge"),
        ("size", json!({"height": 0, "width": 3}), "size"),
        ("resample", json!(4), "resample"),
        ("image_mean", json!([0.5, 0.5]), "image_mean"),
        ("crop_pct", json!(0.9), "crop_pct"),
        ("do_resize", json!("yes"), "do_resize"),
    ] {
        let mut config = json!({"image_processor_type": "Gemma3ImageProcessor"});
        config[key] = value;
        let error = ImageProcessor::from_config(&config, tower, Backend::Torchvision);
        let error = error.expect_err(key).to_string();
        assert!(error.contains(named), "{key}: {error}");
    }
    let qwen = json!({"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16});
    let error = ImageProcessor::from_config(&qwen, tower, Backend::Torchvision);
    assert!(error.expect_err("16 is not 14").to_string().contains("config.json"));
}

#[test]
fn images_of_internvl_are_cut_whatever_their_own_file_says() {
    let tower = Tower { patch_size: 14, merge_size: 2, max_tiles: None };
    let with = |key: &str, value: Value| {
        let mut config = json!({"image_processor_type": "GotOcr2ImageProcessorFast",
            "crop_to_patches": false, "size": {"height": 28, "width": 28}});
        config[key] = value;
        ImageProcessor::from_config(&config, tower, Backend::Torchvision)
    };
    let tiles = |processor: ImageProcessor| {
        let layout = processor.tokens(&header(60, 30), Company::None).expect("a layout");
        (layout.tile_rows, layout.tile_columns, layout.num_tiles(), layout.num_tokens())
    };
    assert_eq!(tiles(with("crop_size", Value::Null).unwrap()), (0, 0, 1, 1));
    assert_eq!(tiles(with("processor_class", json!("InternVLProcessor")).unwrap()), (1, 2, 3, 3));
    let mut got = json!({"image_processor_type": "GotOcr2ImageProcessor", "crop_to_patches": true,
        "processor_class": "GotOcr2Processor", "size": {"height": 28, "width": 28}});
    let of = |config: &Value| ImageProcessor::from_config(config, tower, Backend::Torchvision);
    assert_eq!(tiles(of(&got).unwrap()), (0, 0, 1, 1));
    got["processor_class"] = Value::Null;
    assert_eq!(tiles(of(&got).unwrap()), (1, 2, 3, 3));
    for (key, value) in [("max_patches", json!(0)), ("min_patches", json!(13))] {
        let error = with(key, value).expect_err(key).to_string();
        assert!(error.contains("_patches"), "{error}");
    }
    for (key, value, named) in [
        ("max_patches", json!(5000), "5000"),
        ("size", json!({"height": 20_000, "width": 28}), "20000"),
    ] {
        let error = with(key, value).expect_err(key).to_string();
        assert!(error.contains(named), "{error}");
    }
}

/// `get_optimal_tiled_canvas` of transformers.
#[test]
fn images_of_command_a_vision_have_the_grid_that_they_fit_into() {
    let tower = Tower { patch_size: 16, merge_size: 2, max_tiles: None };
    let of = |key: &str, value: Value| {
        let mut config = json!({"image_processor_type": "Cohere2VisionImageProcessorFast"});
        config[key] = value;
        ImageProcessor::from_config(&config, tower, Backend::Torchvision)
    };
    for ((width, height), max_tiles, expected) in [
        ((100, 100), 12, (0, 0, 1)),
        ((512, 512), 12, (0, 0, 1)),
        ((512, 513), 12, (2, 1, 3)),
        ((900, 300), 12, (1, 2, 3)),
        ((3000, 4000), 12, (4, 3, 13)),
        ((5000, 100), 12, (1, 10, 11)),
        ((2000, 2000), 12, (3, 3, 10)),
        ((1025, 511), 6, (1, 3, 4)),
        ((30, 40), 1, (0, 0, 1)),
        ((2048, 1024), 12, (2, 4, 9)),
        ((9000, 3000), 5, (1, 3, 4)),
    ] {
        let processor = of("max_patches", json!(max_tiles)).unwrap();
        let layout = processor.tokens(&header(width, height), Company::None).expect("a layout");
        let found = (layout.tile_rows, layout.tile_columns, layout.num_tiles());
        assert_eq!(found, expected, "{width}x{height}");
        assert_eq!(layout.num_tokens(), 256 * layout.num_tiles());
    }
    let error = of("patch_size", json!(15)).expect_err("tokens of a tile").to_string();
    assert!(error.contains("`patch_size` of 15"), "{error}");
}

#[test]
fn the_middle_of_tiles_is_one_picture_with_newlines() {
    let middle =
        Middle { top: 1, rows: 1, left: 1, columns: 2, shrunk: None, lines: Lines::OfMiddle };
    let tiles = Layout {
        rows: 2,
        columns: 2,
        tile_rows: 1,
        tile_columns: 2,
        merge_size: 1,
        middle: None,
        whole: None,
        marks: None,
    };
    let layout = Layout { middle: Some(middle), ..tiles };
    // 0 1 | 4 5
    // 2 3 | 6 7, then the whole image.
    assert_eq!(layout.sources().expect("newlines"), [8, 9, 10, 11, 3, 6, 12]);
    assert_eq!((layout.num_tile_tokens(), layout.num_tokens()), (12, 7));
    assert_eq!((tiles.sources(), tiles.num_tokens()), (None, 12));
}

/// `interpolate(mode="bilinear")` of torch 2.15, from 4 x 6 to 3 x 4.
#[test]
fn a_picture_with_more_tokens_is_made_smaller() {
    let middle = Middle::whole(Size { width: 6, height: 4 }, Lines::OfMiddle);
    assert_eq!(sizes::shrunk(&middle, 20), None);
    assert_eq!(sizes::shrunk(&middle, 12), Some([2, 4]));
    // 3.0 // 1.5 is 2, whatever 3.0 / 1.5 is rounded to.
    let square = Middle { rows: 3, columns: 3, ..middle };
    assert_eq!(sizes::shrunk(&square, 4), Some([2, 2]));
    let layout = Layout {
        rows: 2,
        columns: 3,
        tile_rows: 2,
        tile_columns: 2,
        merge_size: 1,
        middle: Some(Middle { shrunk: Some([3, 4]), ..middle }),
        whole: None,
        marks: None,
    };
    let mixtures = layout.mixtures();
    // Rows 0 and 1 are 5 to 1, columns 1 and 2 are 1 to 3.
    let expected = [(1, 5.0 / 24.0), (2, 5.0 / 8.0), (4, 1.0 / 24.0), (5, 1.0 / 8.0)];
    assert_eq!(mixtures.len(), 12);
    for ((source, share), (expected, of)) in mixtures[1].into_iter().zip(expected) {
        assert!(source == expected && (share - of).abs() < 1e-6, "{source}: {share}");
    }
    let sources = layout.sources().expect("newlines");
    assert_eq!(sources[..11], [24, 25, 26, 27, 28, 29, 31, 32, 33, 34, 30]);
    assert_eq!((sources.len(), layout.num_tokens()), (21, 21));
}

#[test]
fn grids_of_llava_next_that_are_no_tiles_are_refused() {
    let tower = Tower { patch_size: 14, merge_size: 1, max_tiles: None };
    let next = |key: &str, value: Value| {
        let mut config = json!({"image_processor_type": "LlavaNextImageProcessor", "do_pad": true,
            "size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28},
            "image_grid_pinpoints": [[28, 56], [56, 28]]});
        config[key] = value;
        ImageProcessor::from_config(&config, tower, Backend::Torchvision)
    };
    // 2 x 2 tokens, and of 2 x 4 all, with two newlines.
    let tokens = |processor: ImageProcessor| {
        processor.tokens(&header(56, 28), Company::None).unwrap().num_tokens()
    };
    assert_eq!(tokens(next("do_pad", json!(null)).unwrap()), 4 + 8 + 2);
    for (key, value, named) in [
        ("image_grid_pinpoints", json!([[28, 57]]), "28 by 57"),
        ("image_grid_pinpoints", json!([[0, 28]]), "image_grid_pinpoints"),
        ("image_grid_pinpoints", json!([[28, 28, 28]]), "image_grid_pinpoints"),
        ("image_grid_pinpoints", json!([]), "image_grid_pinpoints"),
        ("image_grid_pinpoints", json!([[28, 280_000]]), "28 by 280000"),
        ("crop_size", json!(14), "crop_size"),
        ("size", json!({"height": 28, "width": 14}), "size"),
        ("do_resize", json!(false), "do_resize"),
    ] {
        let error = next(key, value).expect_err(key).to_string();
        assert!(error.contains(named), "{key}: {error}");
    }
}

/// Pillow's numbers differ from torchvision's in the last bits.
#[test]
fn numbers_of_pillow_are_scaled_first() {
    let of = |backend| Normalization {
        rescale_factor: Some(1.0 / 255.0),
        mean_and_std: Some((
            [0.48145466, 0.4578275, 0.40821073],
            [0.26862954, 0.26130258, 0.27577711],
        )),
        is_centred: false,
        backend,
    };
    let (ours, theirs) = (of(Backend::Torchvision).tables(), of(Backend::Pillow).tables());
    let pairs = || ours.iter().flatten().zip(theirs.iter().flatten());
    assert!(pairs().all(|(one, other)| (one - other).abs() < 1e-6));
    assert!(pairs().any(|(one, other)| one != other));
}

/// What processors make of images: width and height, and those of the image that is cut to patches.
type Resized = ((usize, usize), (usize, usize));

fn resized_as(config: &Value, tower: Tower, cases: &[Resized]) {
    let processor = ImageProcessor::from_config(config, tower, Backend::Torchvision).unwrap();
    for &(from, to) in cases {
        let layout = processor.tokens(&header(from.0, from.1), Company::None).expect("a layout");
        let side = tower.patch_size;
        assert_eq!((layout.columns * side, layout.rows * side), to, "{from:?}");
    }
}

const PATCHES: Tower = Tower { patch_size: 14, merge_size: 2, max_tiles: None };

/// `smart_resize` of Muse Glimmer in transformers 5.24: of squares two grids are as near.
#[test]
fn whole_tokens_of_muse_glimmer_have_the_shape_that_is_nearest() {
    let config =
        json!({"image_processor_type": "MuseGlimmerImageProcessor", "max_image_tokens": 64});
    let cases = [
        ((100, 100), (112, 112)),
        ((1, 1), (28, 28)),
        ((28, 28), (28, 28)),
        ((300, 14), (308, 28)),
        ((14, 300), (28, 308)),
        ((640, 480), (252, 196)),
        ((333, 211), (280, 168)),
        ((5000, 3000), (280, 168)),
        ((57, 99), (56, 84)),
        ((70, 70), (84, 84)),
        ((1000, 1000), (224, 224)),
    ];
    resized_as(&config, PATCHES, &cases);
}

/// `smart_resize` of PaddleOCR-VL in transformers 5.24.
#[test]
fn small_sides_of_paddle_grow_in_turn() {
    let config = json!({
        "image_processor_type": "PaddleOCRVLImageProcessor",
        "min_pixels": 3136,
        "max_pixels": 50_176,
    });
    let cases = [
        ((300, 14), (588, 28)),
        ((14, 300), (28, 588)),
        ((13, 27), (56, 84)),
        ((27, 13), (84, 56)),
        ((28, 70), (56, 112)),
        ((1, 1), (56, 56)),
        ((5, 4), (84, 56)),
        ((640, 480), (252, 168)),
        ((57, 99), (56, 112)),
        ((9, 1000), (28, 2352)),
    ];
    resized_as(&config, PATCHES, &cases);
}

/// What `DeepseekVLImageProcessor` of transformers 5.24 makes of sides before it fills them up.
#[test]
fn the_longer_side_of_deepseek_is_that_of_a_square() {
    for (from, to) in [
        ((640, 480), (384, 288)),
        ((1, 1), (384, 384)),
        ((1000, 3), (384, 14)),
        ((3, 1000), (14, 384)),
        ((383, 384), (383, 384)),
        ((333, 211), (384, 243)),
    ] {
        let size = Size { width: from.0, height: from.1 };
        let Size { width, height } = super::sizes::longest_side(size, 384, 14);
        assert_eq!((width, height), to, "{from:?}");
    }
    let config = json!({"image_processor_type": "DeepseekVLImageProcessor"});
    let tower = Tower { patch_size: 16, merge_size: 1, max_tiles: None };
    resized_as(&config, tower, &[((640, 480), (384, 384)), ((3, 1000), (384, 384))]);
    for (key, value, expected) in [
        ("do_pad", json!(false), "`do_pad` is false"),
        ("min_size", json!(385), "make no square"),
        ("do_resize", json!(false), "`do_resize` is false"),
    ] {
        let mut config = config.clone();
        config[key] = value;
        let error = ImageProcessor::from_config(&config, tower, Backend::Torchvision).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn images_of_kimi_fill_whole_tokens_and_what_its_code_does_otherwise_is_refused() {
    let saved = json!({"image_processor_type": "Kimi_K25ImageProcessor", "max_patches": 40,
        "size": {"max_height": 9, "max_width": 9}});
    let cases = [
        ((64, 48), (84, 56)),
        ((1, 1), (28, 28)),
        ((400, 13), (140, 28)),
        ((301, 222), (112, 84)),
        ((126, 127), (112, 112)),
    ];
    resized_as(&saved, PATCHES, &cases);
    let own = json!({"auto_map": {"AutoImageProcessor": "image_processing_kimi_vl.KimiVLImageProcessor"},
        "in_token_limit": 4096, "num_pooled_tokens": 1024, "pad_input": true});
    // A side of 512 patches is too long, 511 are no whole tokens.
    resized_as(&own, PATCHES, &[((7140, 13), (7140, 28)), ((14, 28), (28, 28))]);
    let processor = ImageProcessor::from_config(&own, PATCHES, Backend::Torchvision).unwrap();
    let error = processor.tokens(&header(7141, 13), Company::None).expect_err("512 patches");
    assert_eq!(error.code(), "media_unsupported");
    let chunks = json!({"auto_map": {"AutoImageProcessor": "k.KimiK25VisionProcessor"},
        "media_proc_cfg": {"in_patch_limit": 40, "fixed_output_tokens": null}});
    for (config, key, value, expected) in [
        (&saved, "size", json!({"max_height": 9, "max_width": 8}), "no square"),
        (&saved, "merge_size", json!(4), "`merge_size` is 4, and 2"),
        (&saved, "max_patches", json!(1 << 17), "`max_patches` is 131072"),
        (&saved, "media_proc_cfg", json!({}), "`media_proc_cfg` is not read"),
        (&own, "pad_input", json!(false), "`pad_input` is false"),
        (&own, "merge_kernel_size", json!([2, 3]), "`merge_kernel_size` is [2,3]"),
        (&chunks, "media_proc_cfg", json!(null), "`media_proc_cfg` is missing"),
        (&chunks, "media_proc_cfg", json!({"fixed_output_tokens": 9}), "`fixed_output_tokens`"),
        (&chunks, "max_patches", json!(40), "`max_patches` is not read"),
    ] {
        let mut config = config.clone();
        config[key] = value;
        let error = ImageProcessor::from_config(&config, PATCHES, Backend::Torchvision);
        let error = error.expect_err(key).to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn images_of_deepseek_vl2_have_lines_and_many_have_one_tile_each() {
    let config = json!({"image_processor_type": "DeepseekVLV2Processor",
        "candidate_resolutions": [[42, 42], [42, 84], [84, 42]]});
    let processor = ImageProcessor::from_config(&config, PATCHES, Backend::Pillow).unwrap();
    // 3 x 3 patches are 2 x 2 tokens.
    let layout = processor.tokens(&header(80, 40), processor.company(2)).expect("a layout");
    assert_eq!((layout.tile_rows, layout.tile_columns, layout.num_tiles()), (1, 2, 3));
    let sources = layout.sources().expect("lines");
    let whole = [8, 9, 12, 10, 11, 12];
    assert_eq!(sources[..7], [&whole[..], &[13]].concat());
    // 0 1 | 4 5
    // 2 3 | 6 7
    assert_eq!(sources[7..], [0, 1, 4, 5, 12, 2, 3, 6, 7, 12]);
    assert_eq!(layout.num_tokens(), sources.len());
    let many = processor.tokens(&header(80, 40), processor.company(3)).expect("a layout");
    assert_eq!((many.num_tiles(), many.num_tokens()), (2, 6 + 1 + 6));
    let error = processor.tokens(&header(1000, 1), Company::None).expect_err("no pixel");
    assert_eq!(error.code(), "media_unsupported");
    for (key, value, expected) in [
        ("candidate_resolutions", json!([]), "`candidate_resolutions` is missing"),
        ("candidate_resolutions", json!([[42, 42], [42, 83]]), "83 by 42 pixels"),
        ("normalise", json!(true), "`normalise` is not read"),
    ] {
        let mut config = config.clone();
        config[key] = value;
        let error = ImageProcessor::from_config(&config, PATCHES, Backend::Pillow);
        assert!(error.expect_err(key).to_string().contains(expected));
    }
}

/// As `replace_image_token` of `processing_ovis2.py` writes them.
#[test]
fn marks_of_a_grid_stand_between_its_tiles() {
    let layout = |tile_rows: usize, tile_columns: usize| Layout {
        rows: 1,
        columns: 2,
        tile_rows,
        tile_columns,
        merge_size: 1,
        middle: None,
        whole: None,
        marks: Some(Marks::Grid),
    };
    let sources = |rows, columns| {
        let layout = layout(rows, columns);
        let sources = layout.sources().expect("marks");
        assert_eq!(sources.len(), layout.num_tokens());
        sources
    };
    assert_eq!(sources(0, 0), [2, 0, 1, 3, 6]);
    let [start, whole, column, row, end] = [10, 11, 12, 13, 14];
    assert_eq!(
        sources(2, 2),
        [start, 0, 1, whole, 2, 3, column, 4, 5, row, 6, 7, column, 8, 9, end]
    );
    assert_eq!(sources(1, 2), [6, 0, 1, 7, 2, 3, 8, 4, 5, 10]);
}
