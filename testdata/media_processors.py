"""What torchvision, Pillow and transformers make of noise, for generate_media.py."""

import itertools
import json
import math

import numpy as np
import PIL
import torch
import torchvision
import transformers
from blake3 import blake3
from PIL import Image
from torchvision.transforms import functional as TF
from torchvision.transforms.v2 import functional as tvF
from transformers.models.clip.image_processing_clip import CLIPImageProcessor
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_gemma3 import Gemma3ImageProcessor
from transformers.models.gemma4.image_processing_gemma4 import Gemma4ImageProcessor
from transformers.models.glm4v.image_processing_glm4v import Glm4vImageProcessor
from transformers.models.got_ocr2.image_processing_got_ocr2 import GotOcr2ImageProcessor
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.idefics3.image_processing_idefics3 import Idefics3ImageProcessor
from transformers.models.kimi_k25.image_processing_kimi_k25 import (
    Kimi_K25ImageProcessor, navit_resize,
)
from transformers.models.lfm2_vl.image_processing_lfm2_vl import Lfm2VlImageProcessor
from transformers.models.llava.image_processing_llava import LlavaImageProcessor
from transformers.models.llava_next.image_processing_llava_next import LlavaNextImageProcessor
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.llava_onevision.image_processing_llava_onevision import (
    LlavaOnevisionImageProcessor,
)
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor
from transformers.models.molmo2.image_processing_molmo2 import Molmo2ImageProcessor
from transformers.models.molmo2.processing_molmo2 import Molmo2Processor
from transformers.models.ovis2.image_processing_ovis2 import Ovis2ImageProcessor
from transformers.models.ovis2.processing_ovis2 import Ovis2Processor
from transformers.models.pixtral.image_processing_pixtral import PixtralImageProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.siglip.image_processing_siglip import SiglipImageProcessor
from transformers.models.siglip2.image_processing_siglip2 import Siglip2ImageProcessor
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.image_processing_smolvlm import SmolVLMImageProcessor
from transformers.models.vit.image_processing_vit import ViTImageProcessor

import generate_media
from golden_models.deepseek_vl2_oracle import DeepseekVL2Processor
from image_processors import Phi4MultimodalImageProcessor

VERSIONS = {
    "pillow": PIL.__version__,
    "torch": torch.__version__,
    "torchvision": torchvision.__version__,
    "transformers": transformers.__version__,
}

FILTERS = {
    "bilinear": (tvF.InterpolationMode.BILINEAR, Image.Resampling.BILINEAR),
    "bicubic": (tvF.InterpolationMode.BICUBIC, Image.Resampling.BICUBIC),
    "lanczos": (tvF.InterpolationMode.LANCZOS, Image.Resampling.LANCZOS),
}

# Widths and heights, from and to. To 1 by 1 torch 2.15 cannot (UpSampleKernelAVXAntialias.h).
SIZES = [
    ((1, 1), (5, 7)),
    ((2, 3), (1, 2)),
    ((17, 23), (17, 40)),
    ((17, 23), (40, 23)),
    ((17, 23), (17, 23)),
    ((31, 29), (14, 90)),
    ((31, 29), (90, 11)),
    ((64, 48), (28, 28)),
    ((64, 48), (63, 47)),
    ((64, 48), (65, 49)),
    ((9, 120), (30, 10)),
    ((120, 9), (10, 30)),
    ((100, 100), (7, 3)),
    ((8, 8), (100, 130)),
    ((200, 150), (98, 70)),
]


def resized():
    out = []
    for seed, ((width, height), (new_width, new_height)) in enumerate(SIZES, 1):
        source = generate_media.noise(width, height, seed)
        tensor = torch.from_numpy(source.copy()).permute(2, 0, 1).contiguous()
        for name, (torch_mode, pillow_mode) in FILTERS.items():
            ours = tvF.resize(tensor, [new_height, new_width], torch_mode, antialias=True)
            pixels = {
                "torchvision": ours.permute(1, 2, 0).contiguous().numpy(),
                "pillow": np.asarray(Image.fromarray(source).resize((new_width, new_height), pillow_mode)),
            }
            for backend, values in pixels.items():
                out.append(
                    {
                        "from": [width, height],
                        "seed": seed,
                        "to": [new_width, new_height],
                        "filter": name,
                        "backend": backend,
                        "blake3": blake3(values.tobytes()).hexdigest(),
                    }
                )
    return VERSIONS, out


HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
SCALED = {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "do_resize": True}



def normalized(image):
    """As `to_tensor` and `normalize` of torchvision have it."""
    return TF.normalize(TF.to_tensor(image), [0.5] * 3, [0.5] * 3)


class KimiK25VisionProcessor:
    """Kimi K2.5's own code: the sizes of transformers, and Pillow's pixels."""

    def __init__(self, media_proc_cfg, **_):
        self.limit = media_proc_cfg["in_patch_limit"]
        self.side = media_proc_cfg["patch_limit_on_one_side"]

    def sizes(self, height, width):
        return navit_resize(height, width, 14, 2, self.limit, self.side)

    def __call__(self, image, return_tensors):
        size, filled = self.sizes(image.height, image.width)
        image = image.resize(size[::-1], Image.Resampling.BICUBIC)
        whole = Image.new("RGB", filled[::-1])
        whole.paste(image, (0, 0))
        grid = torch.tensor([[1, filled[0] // 14, filled[1] // 14]])
        return {"pixel_values": as_patches(normalized(whole), 14), "image_grid_thw": grid}


class KimiVLImageProcessor(KimiK25VisionProcessor):
    """Kimi-VL's own code: an image without a whole patch is never made smaller."""

    def __init__(self, in_token_limit, **_):
        self.limit = in_token_limit

    def sizes(self, height, width):
        num_patches = (width // 14) * (height // 14)
        if num_patches > self.limit:
            scale = math.sqrt(self.limit / num_patches)
            height, width = int(height * scale), int(width * scale)
        return (height, width), tuple(-(-side // 28) * 28 for side in (height, width))


class DeepseekVLV2Processor:
    """DeepSeek-VL2's own code."""

    def __init__(self, candidate_resolutions):
        config = dict(candidate_resolutions=candidate_resolutions, vision_config=dict(patch_size=14))
        self.inner = DeepseekVL2Processor(None, config)

    def __call__(self, image, return_tensors):
        self.size = self.inner.best(*image.size)
        return {"pixel_values": torch.stack(self.inner.tiles(image, self.size))}


# Name, class, configuration as published files have it, patch and merged patches of the tower, sizes.
PROCESSORS = [
    (
        "qwen2_vl",
        Qwen2VLImageProcessor,
        {
            **SCALED,
            **CLIP,
            "min_pixels": 3136,
            "max_pixels": 50176,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "resample": 3,
        },
        (14, 2),
        [(300, 14), (1, 1), (200, 1), (28, 70), (70, 28), (56, 56), (57, 99), (301, 222), (400, 300)],
    ),
    (
        "qwen3_vl",
        Qwen2VLImageProcessor,
        {
            **SCALED,
            **HALF,
            "size": {"shortest_edge": 65536, "longest_edge": 16777216},
            "patch_size": 16,
            "temporal_patch_size": 2,
            "merge_size": 2,
        },
        (16, 2),
        [(42, 42), (300, 14), (320, 256), (333, 211)],
    ),
    (
        "glm4v",
        Glm4vImageProcessor,
        {
            **SCALED,
            **CLIP,
            "size": {"shortest_edge": 12544, "longest_edge": 96 * 784},
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
        },
        (14, 2),
        [(300, 14), (1, 1), (200, 1), (28, 70), (27, 99), (57, 99), (301, 222), (400, 300), (13, 14)],
    ),
    (
        "gemma3",
        Gemma3ImageProcessor,
        {**SCALED, **HALF, "size": {"height": 896, "width": 896}, "resample": 2, "do_pan_and_scan": None},
        (14, 4),
        [(640, 480), (896, 896)],
    ),
    (
        "gemma3_small",
        Gemma3ImageProcessor,
        {**SCALED, **HALF, "size": {"height": 56, "width": 56}, "resample": 2, "image_seq_length": 4},
        (14, 2),
        [(64, 48), (3, 200), (1, 1)],
    ),
    (
        "smolvlm",
        SmolVLMImageProcessor,
        {
            **SCALED,
            **HALF,
            "size": {"longest_edge": 128},
            "max_image_size": {"longest_edge": 32},
            "do_image_splitting": True,
            "do_convert_rgb": True,
            "do_pad": True,
            "resample": 1,
        },
        (8, 2),
        [(64, 48), (48, 64), (33, 200), (500, 7), (128, 128), (1, 1), (3, 5)],
    ),
    (
        "smolvlm_one",
        SmolVLMImageProcessor,
        {
            **SCALED,
            **HALF,
            "size": {"longest_edge": 32},
            "max_image_size": {"longest_edge": 32},
            "do_image_splitting": True,
            "resample": 1,
        },
        (8, 4),
        [(64, 64), (30, 31), (200, 10)],
    ),
    (
        "idefics3",
        Idefics3ImageProcessor,
        {
            **SCALED,
            **HALF,
            "size": {"longest_edge": 4 * 364},
            "max_image_size": {"longest_edge": 364},
            "do_image_splitting": True,
            "resample": 1,
        },
        (14, 2),
        [(640, 480)],
    ),
    (
        "idefics3_whole",
        Idefics3ImageProcessor,
        {
            **SCALED,
            **HALF,
            "size": {"longest_edge": 100},
            "max_image_size": {"longest_edge": 32},
            "do_image_splitting": False,
            "resample": 1,
        },
        (8, 2),
        [(64, 48), (10, 90)],
    ),
    (
        "lfm2_vl",
        Lfm2VlImageProcessor,
        {
            **SCALED,
            **HALF,
            "downsample_factor": 2,
            "do_image_splitting": True,
            "encoder_patch_size": 8,
            "max_image_tokens": 12,
            "max_pixels_tolerance": 2.0,
            "max_tiles": 6,
            "min_image_tokens": 4,
            "min_tiles": 2,
            "resample": 2,
            "size": {"height": 32, "width": 32},
            "tile_size": 32,
            "use_thumbnail": True,
        },
        (8, 2),
        [(64, 48), (48, 64), (200, 33), (9, 120), (1, 1), (90, 90), (130, 100), (3, 400)],
    ),
    (
        "internvl",
        GotOcr2ImageProcessor,
        {
            **SCALED,
            **IMAGENET,
            "crop_to_patches": True,
            "max_patches": 12,
            "min_patches": 1,
            "size": {"height": 28, "width": 28},
            "resample": 3,
        },
        (14, 2),
        [(64, 48), (48, 64), (28, 28), (200, 33), (9, 120), (1, 1), (90, 90), (20, 10), (57, 28)],
    ),
    (
        "internvl_few",
        GotOcr2ImageProcessor,
        {
            **SCALED,
            **IMAGENET,
            "crop_to_patches": True,
            "max_patches": 4,
            "min_patches": 2,
            "size": {"height": 28, "width": 42},
            "resample": 3,
        },
        (14, 1),
        [(64, 48), (40, 200), (100, 100)],
    ),
    (
        "internvl_whole",
        GotOcr2ImageProcessor,
        {**SCALED, **IMAGENET, "crop_to_patches": False, "size": {"height": 56, "width": 56}, "resample": 3},
        (14, 2),
        [(64, 48)],
    ),
    (
        "siglip",
        SiglipImageProcessor,
        {**SCALED, **HALF, "size": {"height": 64, "width": 64}, "resample": 3},
        (16, 1),
        [(64, 48), (100, 180)],
    ),
    (
        "vit",
        ViTImageProcessor,
        {**SCALED, **HALF, "size": {"height": 64, "width": 64}, "resample": 2},
        (16, 1),
        [(64, 48), (100, 180), (3, 200), (1, 1)],
    ),
    (
        "vit_bare",
        ViTImageProcessor,
        {**HALF, "do_normalize": True, "do_resize": True, "size": 32},
        (16, 1),
        [(64, 48), (30, 90)],
    ),
    (
        "siglip2",
        Siglip2ImageProcessor,
        {**SCALED, **HALF, "patch_size": 16, "max_num_patches": 20, "resample": 2},
        (16, 1),
        [(64, 48), (161, 90), (33, 400), (1, 1), (500, 3), (999, 777), (80, 64)],
    ),
    (
        "clip",
        CLIPImageProcessor,
        {
            **SCALED,
            **CLIP,
            "size": {"shortest_edge": 224},
            "crop_size": {"height": 224, "width": 224},
            "do_center_crop": True,
            "do_convert_rgb": True,
            "resample": 3,
        },
        (14, 1),
        [(640, 480), (301, 557), (100, 99)],
    ),
    (
        "clip_bare",
        CLIPImageProcessor,
        {
            **CLIP,
            "size": 28,
            "crop_size": 42,
            "do_center_crop": True,
            "do_normalize": True,
            "do_resize": True,
            "resample": 3,
        },
        (14, 1),
        [(64, 48), (30, 90)],
    ),
    (
        "clip_unscaled",
        CLIPImageProcessor,
        {
            **SCALED,
            "do_normalize": False,
            "size": {"shortest_edge": 28},
            "crop_size": {"height": 28, "width": 28},
            "do_center_crop": True,
            "resample": 3,
        },
        (14, 1),
        [(64, 48)],
    ),
    (
        "llava",
        LlavaImageProcessor,
        {
            **SCALED,
            **CLIP,
            "size": {"shortest_edge": 56},
            "crop_size": {"height": 56, "width": 56},
            "do_center_crop": True,
            "do_pad": True,
            "resample": 3,
        },
        (14, 1),
        [(64, 48), (33, 90), (70, 70)],
    ),
    (
        "llava_next",
        LlavaNextImageProcessor,
        {
            **SCALED,
            **CLIP,
            "size": {"shortest_edge": 28},
            "crop_size": {"height": 28, "width": 28},
            "do_center_crop": True,
            "do_pad": True,
            "image_grid_pinpoints": [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]],
            "resample": 3,
        },
        (7, 1),
        [(64, 48), (48, 64), (28, 28), (200, 33), (9, 120), (1, 1), (90, 90), (57, 28), (28, 57), (84, 28)],
    ),
    (
        "llava_onevision",
        LlavaOnevisionImageProcessor,
        {
            **SCALED,
            **HALF,
            "size": {"height": 28, "width": 28},
            "do_pad": True,
            "image_grid_pinpoints": [
                [28 * rows, 28 * columns] for rows in range(1, 5) for columns in range(1, 5)
            ],
            "resample": 3,
        },
        (7, 1),
        [(64, 48), (48, 64), (28, 28), (200, 33), (9, 120), (1, 1), (90, 90), (57, 28), (300, 299)],
    ),
    (
        "pixtral",
        PixtralImageProcessor,
        {**SCALED, **CLIP, "size": {"longest_edge": 160}, "patch_size": {"height": 16, "width": 16}, "resample": 3},
        (16, 1),
        [(64, 48), (161, 90), (33, 400), (1, 1), (160, 160)],
    ),
    (
        "gemma4",
        Gemma4ImageProcessor,
        {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": False, "do_resize": True,
         "image_mean": [0.0] * 3, "image_std": [1.0] * 3, "max_soft_tokens": 70,
         "patch_size": 16, "pooling_kernel_size": 3, "resample": 3},
        (16, 3),
        [(64, 48), (161, 90), (1, 1), (1, 40), (300, 3), (480, 336), (999, 777)],
    ),
    (
        "molmo2",
        Molmo2ImageProcessor,
        {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "max_crops": 5, "overlap_margins": [2, 1],
         "patch_size": 14, "pooling_size": [2, 2], "resample": 2, "size": {"height": 98, "width": 98}},
        (14, 2),
        [(64, 48), (300, 90), (33, 400), (1, 1), (160, 161), (42, 700), (98, 98), (600, 599)],
    ),
    (
        "ovis2",
        Ovis2ImageProcessor,
        {**SCALED, **CLIP, "crop_to_patches": True, "max_patches": 7, "min_patches": 1, "resample": 3,
         "size": {"height": 28, "width": 28}, "use_covering_area_grid": True},
        (7, 2),
        [(64, 48), (28, 28), (30, 28), (33, 400), (1, 1), (160, 20), (57, 57), (90, 91), (28, 56)],
    ),
    (
        "molmo2_few",
        Molmo2ImageProcessor,
        {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "max_crops": 4, "overlap_margins": [1, 1],
         "patch_size": 8, "pooling_size": [2, 2], "resample": 2, "size": {"height": 32, "width": 32}},
        (8, 2),
        [(64, 48), (300, 90), (33, 80), (1, 1), (16, 16), (17, 3)],
    ),
    (
        "phi4_multimodal",
        Phi4MultimodalImageProcessor,
        {**SCALED, **HALF, "dynamic_hd": 5, "patch_size": 14, "resample": 3,
         "size": {"height": 84, "width": 84}},
        (14, 2),
        [(64, 48), (300, 90), (84, 84), (20, 150), (85, 83), (400, 399), (700, 60), (83, 168)],
    ),
    (
        "phi4_multimodal_large",
        Phi4MultimodalImageProcessor,
        {**SCALED, **HALF},
        (14, 2),
        [(64, 48), (500, 333), (449, 20)],
    ),
    (
        "mistral3",
        PixtralImageProcessor,
        {**SCALED, **CLIP, "size": {"longest_edge": 154}, "patch_size": 28, "resample": 3},
        (14, 2),
        [(64, 48), (155, 90), (33, 400), (1, 1)],
    ),
    (
        "kimi_k25",
        Kimi_K25ImageProcessor,
        {**SCALED, **HALF, "max_patches": 40, "merge_size": 2, "patch_size": 14, "resample": 3,
         "size": {"max_height": 9, "max_width": 9}},
        (14, 2),
        [(64, 48), (28, 28), (301, 222), (1, 1), (13, 400), (200, 9), (126, 127), (90, 13)],
    ),
    (
        "kimi_k25_own",
        KimiK25VisionProcessor,
        {"auto_map": {"AutoImageProcessor": "kimi_k25_vision_processing.KimiK25VisionProcessor"},
         "media_proc_cfg": {**HALF, "in_patch_limit": 40, "patch_size": 14, "merge_kernel_size": 2,
                            "fixed_output_tokens": None, "patch_limit_on_one_side": 9,
                            "in_patch_limit_each_frame": 4096, "in_patch_limit_video": None,
                            "sample_fps": 2.0, "max_num_frames_each_video": None,
                            "temporal_merge_kernel_size": 4, "timestamp_mode": "hh:mm:ss.fff",
                            "config_type": "media_proc.processors.moonvit.MoonViTMediaProcessorConfig"}},
        (14, 2),
        [(64, 48), (301, 222), (13, 400), (200, 9)],
    ),
    (
        "kimi_vl",
        KimiVLImageProcessor,
        {"auto_map": {"AutoImageProcessor": "image_processing_kimi_vl.KimiVLImageProcessor"}, **HALF,
         "in_token_limit": 40, "patch_size": 14, "num_pooled_tokens": 1024, "pad_input": True},
        (14, 2),
        [(64, 48), (28, 28), (301, 222), (1, 1), (13, 900), (200, 140)],
    ),
    (
        "deepseek_vl2",
        DeepseekVLV2Processor,
        {"candidate_resolutions": [
            [42, 42], [42, 84], [84, 42], [42, 126], [126, 42], [84, 84], [42, 168], [168, 42],
        ]},
        (14, 2),
        [(64, 48), (48, 64), (42, 42), (200, 33), (9, 120), (1, 1), (90, 90), (57, 28), (43, 41)],
    ),
]


# Processors of which there is one that resizes with Pillow.
OWN_CODE = (KimiK25VisionProcessor, KimiVLImageProcessor, DeepseekVLV2Processor)
PIL_CLASSES = {
    "internvl": GotOcr2ImageProcessorPil,
    "qwen2_vl": Qwen2VLImageProcessorPil,
    "smolvlm": SmolVLMImageProcessorPil,
    "siglip": SiglipImageProcessorPil,
    "clip": CLIPImageProcessorPil,
    "clip_bare": CLIPImageProcessorPil,
    "clip_unscaled": CLIPImageProcessorPil,
}


def as_patches(pixels, patch):
    """`[3, h, w]` to `[h / patch * w / patch, 3 * patch * patch]`, row after row."""
    bands, height, width = pixels.shape
    parts = pixels.reshape(bands, height // patch, patch, width // patch, patch)
    return parts.permute(1, 3, 0, 2, 4).reshape(-1, bands * patch * patch)


def tokens_of_next(processor, size, patch):
    """Tokens of an image of LLaVA-NeXT, newlines among them."""
    whole = LlavaNextProcessor.__new__(LlavaNextProcessor)
    whole.image_processor, whole.patch_size, whole.num_additional_image_tokens = processor, patch, 0
    side = processor.crop_size["height"]
    return whole._get_number_of_features(size[1], size[0], side, side)


def tokens_of_onevision(processor, size, patch):
    """Tokens of an image of LLaVA-OneVision alone, newlines among them."""
    whole, side = LlavaOnevisionProcessor.__new__(LlavaOnevisionProcessor), processor.size["height"]
    whole.image_processor, whole.num_image_tokens = processor, (side // patch) ** 2
    whole.vision_aspect_ratio = "anyres_max_2"
    return whole._get_number_of_features(size[1], size[0], side, side)


def processed():
    out = []
    pil = [(name, PIL_CLASSES[name], *rest) for name, _, *rest in PROCESSORS if name in PIL_CLASSES]
    for name, processor_class, config, (patch, merge), sizes in [*PROCESSORS, *pil]:
        processor = processor_class(**config)
        published = {**config, "image_processor_type": processor_class.__name__}
        if "auto_map" in config:
            del published["image_processor_type"]
        for seed, (width, height) in enumerate(sizes, 100):
            source = Image.fromarray(generate_media.noise(width, height, seed))
            result = processor(source, return_tensors="pt")
            is_phi4 = processor_class is Phi4MultimodalImageProcessor
            values = result["image_pixel_values" if is_phi4 else "pixel_values"]
            if processor_class is Molmo2ImageProcessor:
                grids = [[processor.size["height"] // patch] * 2] * len(values)
                # As its tower reads them, in another order.
                patches = values.flatten(0, 1).unflatten(1, (patch, patch, 3))
                patches = patches.permute(0, 3, 1, 2).flatten(1)
            elif "image_position_ids" in result:
                columns, rows = (result["image_position_ids"][0].amax(0) + 1).tolist()
                grids = [[rows, columns]]
                # As its tower reads them, in another order.
                patches = 2 * (values[0, : rows * columns] - 0.5)
                patches = patches.unflatten(1, (patch, patch, 3)).permute(0, 3, 1, 2).flatten(1)
            elif "spatial_shapes" in result:
                grids = result["spatial_shapes"].tolist()
                # Without what fills tiles up, and as its tower reads them, in another order.
                patches = [tile[: h * w] for tile, (h, w) in zip(values, grids, strict=True)]
                patches = torch.cat(patches).unflatten(1, (patch, patch, 3))
                patches = patches.permute(0, 3, 1, 2).flatten(1)
            elif "image_grid_thw" in result:
                grids = [result["image_grid_thw"][0, 1:].tolist()]
                patches = values.flatten(1)
            else:
                tiles = values.reshape(-1, *values.shape[-3:])
                if processor_class in (
                    LlavaNextImageProcessor, LlavaOnevisionImageProcessor, DeepseekVLV2Processor,
                    Phi4MultimodalImageProcessor,
                ):
                    tiles = tiles.roll(-1, 0)  # the whole image is behind its tiles, as elsewhere
                grids = [[tile.shape[1] // patch, tile.shape[2] // patch] for tile in tiles]
                patches = torch.cat([as_patches(tile, patch) for tile in tiles])
            tokens = sum(h // merge * (w // merge) for h, w in grids)
            if processor_class is Molmo2ImageProcessor:
                whole = Molmo2Processor.__new__(Molmo2Processor)
                whole.image_use_col_tokens = whole.use_single_crop_start_token = True
                whole.use_single_crop_col_tokens = None
                tokens = whole.replace_image_token(result, 0).count("<")
            if processor_class is Ovis2ImageProcessor:
                whole = Ovis2Processor.__new__(Ovis2Processor)
                whole.image_seq_length = (28 // patch // merge) ** 2
                tokens = whole.replace_image_token(result, 0).count("<")
            if is_phi4:
                (tokens,) = result["num_img_tokens"]
            if processor_class is LlavaNextImageProcessor:
                tokens = tokens_of_next(processor, (width, height), patch)
            if processor_class is LlavaOnevisionImageProcessor:
                tokens = tokens_of_onevision(processor, (width, height), patch)
            if processor_class is DeepseekVLV2Processor:
                columns, rows = (edge // 42 for edge in processor.size)
                tokens = 2 * 3 + 1 + 2 * rows * (2 * columns + 1)
            has_pillow = processor_class in (*PIL_CLASSES.values(), *OWN_CODE)
            out.append(
                {
                    "name": name,
                    "backend": "pillow" if has_pillow else "torchvision",
                    "config": json.dumps(published),
                    "patch": patch,
                    "merge": merge,
                    "from": [width, height],
                    "seed": seed,
                    "grids": grids,
                    "tokens": tokens,
                    **({"most": 2} if processor_class is LlavaOnevisionImageProcessor else {}),
                    "shape": list(patches.shape),
                    "blake3": blake3(patches.contiguous().numpy().tobytes()).hexdigest(),
                }
            )
    return VERSIONS, out
