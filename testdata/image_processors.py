"""Image processors of golden models: their configurations, and the processors of transformers that
are made of them."""

import json
from pathlib import Path

import torch
from PIL import Image
from torchvision.transforms.v2 import functional as tvF
from transformers import PreTrainedTokenizerFast
from transformers.models.aya_vision.processing_aya_vision import AyaVisionProcessor
from transformers.models.idefics3.image_processing_idefics3 import Idefics3ImageProcessor
from transformers.models.clip.image_processing_clip import CLIPImageProcessor
from transformers.models.gemma3.image_processing_gemma3 import Gemma3ImageProcessor
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.cohere2_vision.image_processing_cohere2_vision import (
    Cohere2VisionImageProcessor,
)
from transformers.models.cohere2_vision.processing_cohere2_vision import Cohere2VisionProcessor
from transformers.models.deepseek_vl.image_processing_deepseek_vl import (
    DeepseekVLImageProcessor,
)
from transformers.models.deepseek_vl.processing_deepseek_vl import DeepseekVLProcessor
from transformers.models.gemma4.feature_extraction_gemma4 import Gemma4AudioFeatureExtractor
from transformers.models.gemma4.image_processing_gemma4 import Gemma4ImageProcessor
from transformers.models.gemma4.processing_gemma4 import Gemma4Processor
from transformers.models.gemma4.video_processing_gemma4 import Gemma4VideoProcessor
from transformers.models.glm46v.image_processing_glm46v import Glm46VImageProcessor
from transformers.models.glm46v.processing_glm46v import Glm46VProcessor
from transformers.models.glm46v.video_processing_glm46v import Glm46VVideoProcessor
from transformers.models.glm4v.image_processing_glm4v import Glm4vImageProcessor
from transformers.models.glm4v.processing_glm4v import Glm4vProcessor
from transformers.models.glm4v.video_processing_glm4v import Glm4vVideoProcessor
from transformers.models.got_ocr2.image_processing_got_ocr2 import GotOcr2ImageProcessor
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.got_ocr2.processing_got_ocr2 import GotOcr2Processor
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.internvl.video_processing_internvl import InternVLVideoProcessor
from transformers.models.kimi_k25.image_processing_kimi_k25 import Kimi_K25ImageProcessor
from transformers.models.kimi_k25.processing_kimi_k25 import Kimi_K25Processor
from transformers.models.kimi_k25.video_processing_kimi_k25 import Kimi_K25VideoProcessor
from transformers.models.lfm2_vl.image_processing_lfm2_vl import Lfm2VlImageProcessor
from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor
from transformers.models.lighton_ocr.processing_lighton_ocr import LightOnOcrProcessor
from transformers.models.llava.processing_llava import LlavaProcessor
from transformers.models.llava_next.image_processing_llava_next import LlavaNextImageProcessor
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.llava_onevision.image_processing_llava_onevision import (
    LlavaOnevisionImageProcessor,
)
from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor
from transformers.models.llava_onevision.video_processing_llava_onevision import (
    LlavaOnevisionVideoProcessor,
)
from transformers.models.molmo2.image_processing_molmo2 import Molmo2ImageProcessor
from transformers.models.molmo2.processing_molmo2 import Molmo2Processor
from transformers.models.molmo2.video_processing_molmo2 import Molmo2VideoProcessor
from transformers.models.muse_glimmer.image_processing_muse_glimmer import (
    MuseGlimmerImageProcessor,
)
from transformers.models.muse_glimmer.processing_muse_glimmer import MuseGlimmerProcessor
from transformers.models.muse_glimmer.video_processing_muse_glimmer import (
    MuseGlimmerVideoProcessor,
)
from transformers.models.ovis2.image_processing_ovis2 import Ovis2ImageProcessor
from transformers.models.ovis2.processing_ovis2 import Ovis2Processor
from transformers.models.paddleocr_vl.image_processing_paddleocr_vl import (
    PaddleOCRVLImageProcessor,
)
from transformers.models.paddleocr_vl.processing_paddleocr_vl import PaddleOCRVLProcessor
from transformers.models.paligemma.processing_paligemma import PaliGemmaProcessor
from transformers.models.phi4_multimodal.feature_extraction_phi4_multimodal import (
    Phi4MultimodalFeatureExtractor,
)
from transformers.models.phi4_multimodal.image_processing_phi4_multimodal import (
    Phi4MultimodalImageProcessor as Phi4MultimodalImages,
)
from transformers.models.phi4_multimodal.processing_phi4_multimodal import Phi4MultimodalProcessor
from transformers.models.pixtral.image_processing_pixtral import PixtralImageProcessor
from transformers.models.pixtral.processing_pixtral import PixtralProcessor
from transformers.models.qianfan_ocr.processing_qianfan_ocr import QianfanOCRProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.models.qwen2_vl.video_processing_qwen2_vl import Qwen2VLVideoProcessor
from transformers.models.siglip.image_processing_siglip import SiglipImageProcessor
from transformers.models.smolvlm.image_processing_smolvlm import SmolVLMImageProcessor

from golden_models.deepseek_vl2_oracle import DeepseekVL2Processor
from golden_models.families import towers
from golden_models.families.towers import PATCH


class AyaVisionImages(GotOcr2ImageProcessor):
    """That of Aya Vision, whose files name its parent."""


class QianfanImages(GotOcr2ImageProcessor):
    """That of Qianfan-OCR, whose files name its parent."""


class KimiVLImageProcessor(Kimi_K25ImageProcessor):
    """Kimi-VL's own code, in which Pillow resizes, and no side is too long but for all patches."""

    def __init__(self, in_token_limit: int = 4096, **kwargs):
        sides = dict(max_height=1 << 20, max_width=1 << 20)
        super().__init__(max_patches=in_token_limit, size=sides, **kwargs)

    def resize(self, image, size, **kwargs):
        sides = (size.width, size.height)
        resized = [tvF.to_pil_image(one).resize(sides, Image.Resampling.BICUBIC) for one in image]
        return torch.stack([tvF.pil_to_tensor(one) for one in resized])


class Phi4MultimodalImageProcessor(Phi4MultimodalImages):
    """The same that counts tokens of tiles of any size, and not as if they were of 448 pixels."""

    def _preprocess(self, images, *args, **kwargs):
        out = super()._preprocess(images, *args, **kwargs)
        out["num_img_tokens"] = phi4_tokens(out)
        return out


class Phi4MMImageProcessor(Phi4MultimodalImageProcessor):
    """That of Phi-4-multimodal's own code, in which Pillow resizes."""

    def dynamic_preprocess(self, *args, **kwargs):
        resize = tvF.resize

        def by_pillow(image, size):
            resized = tvF.to_pil_image(image).resize(size[::-1], Image.Resampling.BILINEAR)
            return tvF.pil_to_tensor(resized)

        tvF.resize = by_pillow
        try:
            return super().dynamic_preprocess(*args, **kwargs)
        finally:
            tvF.resize = resize


def phi4_tokens(pixels) -> list[int]:
    """Tokens of each image, lines and the separator too."""
    counts = []
    tile = pixels["image_pixel_values"].shape[-1]
    for mask, size in zip(pixels["image_attention_mask"], pixels["image_sizes"]):
        rows, columns = (int(side) // tile for side in size)
        side = mask.shape[-1]
        tiles = mask[1 : 1 + rows * columns].view(rows, columns, side, side)
        shown = tiles.transpose(1, 2).reshape(rows * side, columns * side)
        high, wide = (-(-int(line.sum()) // 2) for line in (shown[:, 0], shown[0]))
        counts.append(high * (wide + 1) + 1 + side // 2 * (side // 2 + 1))
    return counts


class GotOcr2Images(GotOcr2ImageProcessor):
    """GOT-OCR 2's own, which cuts no image."""


class GotOcr2Prompts(GotOcr2Processor):
    """Of a text with `<image>` in the places of its images, of so many tokens."""

    num_tokens = 4

    def __call__(self, text, images=None, return_tensors=None):
        if images is None:
            return self.tokenizer(text, return_tensors=return_tensors)
        return super().__call__(
            text=text, images=images[0], num_image_tokens=self.num_tokens,
            return_tensors=return_tensors,
        )


class DotsOcrImages(Qwen2VLImageProcessor):
    """dots.ocr's, whose patches have one frame."""


# (folder, class of the image processor, edges of images and of tiles or patches, or least and
# most pixels, or an edge and tokens)
MODELS = [
    ("aya_vision", AyaVisionImages, 32, 32),
    ("cohere2_vision", Cohere2VisionImageProcessor, 32, 32),
    ("deepseek_vl", DeepseekVLImageProcessor, 32, 8),
    ("deepseek_vl2", DeepseekVL2Processor, 0, 0),
    ("deepseek_vl2_tiny", DeepseekVL2Processor, 0, 0),
    ("dots_ocr", DotsOcrImages, 1024, 8192),
    ("exaone4_5", Qwen2VLImageProcessor, 2048, 8192),
    ("gemma3_multimodal", Gemma3ImageProcessor, 32, 32),
    ("gemma3_published", Gemma3ImageProcessor, 48, 48),
    ("gemma4_e2b", Gemma4ImageProcessor, 70, 4),
    ("gemma4_moe", Gemma4ImageProcessor, 70, 4),
    ("glm46v", Glm46VImageProcessor, 2048, 8192),
    ("glm4v", Glm4vImageProcessor, 2048, 16384),
    ("glm4v_moe", Glm4vImageProcessor, 1024, 8192),
    ("glm_ocr", Glm46VImageProcessor, 1024, 8192),
    ("got_ocr2", GotOcr2Images, 64, 64),
    ("granite_vision", LlavaNextImageProcessor, 26, 26),
    ("hyperclovax_vision", Qwen2VLImageProcessor, 1024, 8192),
    ("idefics3", Idefics3ImageProcessor, 32, 32),
    ("internvl", GotOcr2ImageProcessor, 32, 32),
    ("internvl_chat", GotOcr2ImageProcessorPil, 32, 32),
    ("internvl_published", GotOcr2ImageProcessor, 64, 64),
    ("kimi_k25", Kimi_K25ImageProcessor, 30, 5),
    ("kimi_vl", KimiVLImageProcessor, 24, 8),
    ("lfm2_vl", Lfm2VlImageProcessor, 6, 32),
    ("lighton_ocr", PixtralImageProcessor, 45, 6),
    ("llava", CLIPImageProcessor, 24, 24),
    ("llava_next", LlavaNextImageProcessor, 24, 24),
    ("llava_next_saved", LlavaNextImageProcessor, 16, 16),
    ("llava_onevision", LlavaOnevisionImageProcessor, 26, 26),
    ("llava_saved", CLIPImageProcessor, 16, 16),
    ("ministral3_multimodal", PixtralImageProcessor, 48, 4),
    ("mistral3", PixtralImageProcessor, 48, 8),
    ("molmo2", Molmo2ImageProcessor, 4, 40),
    ("molmo2_o", Molmo2ImageProcessor, 6, 40),
    ("muse_glimmer", MuseGlimmerImageProcessor, 20, 8),
    ("ovis2", Ovis2ImageProcessor, 5, 32),
    ("paddleocr_vl", PaddleOCRVLImageProcessor, 2048, 8192),
    ("paligemma", SiglipImageProcessor, 32, 16),
    ("paligemma2", SiglipImageProcessor, 40, 25),
    ("phi4_multimodal", Phi4MultimodalImageProcessor, 4, 48),
    ("phi4_multimodal_untied", Phi4MultimodalImageProcessor, 6, 48),
    ("phi4mm", Phi4MMImageProcessor, 4, 48),
    ("pixtral", PixtralImageProcessor, 40, 8),
    ("qianfan_ocr", QianfanImages, 32, 32),
    ("qwen2_5_vl", Qwen2VLImageProcessor, 8192, 16384),
    ("qwen2_vl", Qwen2VLImageProcessor, 1024, 8192),
    ("qwen3_5_moe_multimodal", Qwen2VLImageProcessor, 1024, 8192),
    ("qwen3_5_multimodal", Qwen2VLImageProcessor, 2048, 8192),
    ("qwen3_vl", Qwen2VLImageProcessor, 2048, 8192),
    ("qwen3_vl_moe", Qwen2VLImageProcessor, 1024, 8192),
    ("smolvlm", SmolVLMImageProcessor, 64, 32),
    ("vipllava", CLIPImageProcessor, 24, 24),
]
# Of models whose tokens have positions on axes.
WITH_AXES = (Glm46VProcessor, Glm4vProcessor, PaddleOCRVLProcessor, Qwen2VLProcessor)
# What their templates have around an image.
BRACKET = "<fake_token_around_image>"
IN_BRACKETS = (
    DotsOcrImages, Glm46VImageProcessor, Glm4vImageProcessor, PaddleOCRVLImageProcessor,
    Qwen2VLImageProcessor,
)


def preprocessor_config(cls, longest: int, tile: int) -> dict | None:
    if cls is DeepseekVL2Processor:
        return None  # config.json has it
    if cls is Gemma3ImageProcessor:
        return dict(
            do_convert_rgb=None, do_normalize=True, do_pan_and_scan=None, do_rescale=True,
            do_resize=True, image_mean=[0.5] * 3, image_processor_type=cls.__name__,
            image_seq_length=256, image_std=[0.5] * 3, pan_and_scan_max_num_crops=None,
            pan_and_scan_min_crop_size=None, pan_and_scan_min_ratio_to_activate=None,
            processor_class="Gemma3Processor", resample=2, rescale_factor=1 / 255,
            size=dict(height=tile, width=tile),
        )
    if cls is LlavaNextImageProcessor:
        sides = [[1, 2], [2, 1], [2, 2], [3, 1], [1, 3], *([[1, 1]] if tile != 24 else [])]
        return preprocessor_config(CLIPImageProcessor, longest, tile) | dict(
            do_pad=True, image_processor_type=cls.__name__, processor_class="LlavaNextProcessor",
            image_grid_pinpoints=[[rows * tile, columns * tile] for rows, columns in sides],
        )
    if cls is LlavaOnevisionImageProcessor:
        return dict(
            do_convert_rgb=True, do_normalize=True, do_pad=True, do_rescale=True, do_resize=True,
            image_grid_pinpoints=towers.ONEVISION_PINPOINTS, image_mean=[0.5] * 3,
            image_processor_type=cls.__name__, image_std=[0.5] * 3,
            processor_class="LlavaOnevisionProcessor", resample=3, rescale_factor=1 / 255,
            size=dict(height=tile, width=tile),
        )
    if cls is Gemma4ImageProcessor:
        return dict(
            do_convert_rgb=True, do_normalize=False, do_rescale=True, do_resize=True,
            image_mean=[0.0] * 3, image_processor_type=cls.__name__, image_seq_length=280,
            image_std=[1.0] * 3, max_soft_tokens=longest, patch_size=tile, pooling_kernel_size=2,
            processor_class="Gemma4Processor", resample=3, rescale_factor=1 / 255,
        )
    if cls is CLIPImageProcessor:
        return dict(
            crop_size=dict(height=tile, width=tile), do_center_crop=True, do_convert_rgb=True,
            do_normalize=True, do_rescale=True, do_resize=True,
            image_mean=[0.48145466, 0.4578275, 0.40821073], image_processor_type=cls.__name__,
            image_std=[0.26862954, 0.26130258, 0.27577711], resample=3, rescale_factor=1 / 255,
            size=dict(shortest_edge=longest),
        )
    if cls is GotOcr2ImageProcessorPil:
        # What lies beside InternVL's own code, which does not read it.
        return dict(
            crop_size=tile, do_center_crop=True, do_normalize=True, do_resize=True,
            feature_extractor_type="CLIPFeatureExtractor", image_mean=[0.485, 0.456, 0.406],
            image_std=[0.229, 0.224, 0.225], resample=3, size=tile,
        )
    if cls is AyaVisionImages:
        return preprocessor_config(GotOcr2ImageProcessor, longest, tile) | dict(
            image_mean=[0.5] * 3, image_std=[0.5] * 3, processor_class="AyaVisionProcessor",
        )
    if cls is QianfanImages:
        return preprocessor_config(GotOcr2ImageProcessor, longest, tile) | dict(
            processor_class="QianfanOCRProcessor",
        )
    if cls is Cohere2VisionImageProcessor:
        return preprocessor_config(AyaVisionImages, longest, tile) | dict(
            crop_to_patches=True, image_processor_type=f"{cls.__name__}Fast", max_patches=6,
            patch_size=2, processor_class="Cohere2VisionProcessor",
        )
    if cls is GotOcr2ImageProcessor:
        return dict(
            crop_size=None, crop_to_patches=False, data_format="channels_first",
            default_to_square=True, device=None, do_center_crop=None, do_convert_rgb=True,
            do_normalize=True, do_rescale=True, do_resize=True, image_mean=[0.485, 0.456, 0.406],
            image_processor_type=f"{cls.__name__}Fast", image_std=[0.229, 0.224, 0.225],
            input_data_format=None, max_patches=4, min_patches=1,
            processor_class="InternVLProcessor", resample=3, rescale_factor=1 / 255,
            return_tensors=None, size=dict(height=tile, width=tile),
        )
    if cls is PixtralImageProcessor:
        return dict(
            do_convert_rgb=True, do_normalize=True, do_rescale=True, do_resize=True,
            image_mean=[0.48145466, 0.4578275, 0.40821073], image_processor_type=cls.__name__,
            image_std=[0.26862954, 0.26130258, 0.27577711],
            patch_size=dict(height=tile, width=tile), processor_class="PixtralProcessor",
            resample=3, rescale_factor=1 / 255, size=dict(longest_edge=longest),
        )
    if cls in (Glm4vImageProcessor, Glm46VImageProcessor):
        return dict(
            do_rescale=True, image_mean=[0.48145466, 0.4578275, 0.40821073],
            image_processor_type=cls.__name__, image_std=[0.26862954, 0.26130258, 0.27577711],
            merge_size=2, patch_size=8, temporal_patch_size=2,
            processor_class=cls.__name__.replace("Image", ""),
            size=dict(shortest_edge=longest, longest_edge=tile),
        )
    if cls is Lfm2VlImageProcessor:
        return dict(
            crop_size=None, data_format="channels_first", default_to_square=True, device=None,
            disable_grouping=None, do_center_crop=None, do_convert_rgb=None,
            do_image_splitting=True, do_normalize=True, do_pad=True, do_rescale=True,
            do_resize=True, downsample_factor=2, encoder_patch_size=PATCH, image_mean=[0.5] * 3,
            image_processor_type=f"{cls.__name__}Fast", image_std=[0.5] * 3,
            input_data_format=None, max_image_tokens=longest, max_num_patches=24,
            max_pixels_tolerance=2.0, max_tiles=4, min_image_tokens=2, min_tiles=2,
            processor_class="Lfm2VlProcessor", resample=2, rescale_factor=1 / 255,
            return_row_col_info=True, return_tensors=None, size=dict(height=tile, width=tile),
            tile_size=tile, use_thumbnail=True,
        )
    if cls is Kimi_K25ImageProcessor:
        return dict(
            do_convert_rgb=True, do_normalize=True, do_rescale=True, do_resize=True,
            image_mean=[0.5] * 3, image_processor_type=cls.__name__, image_std=[0.5] * 3,
            max_patches=longest, merge_size=2, patch_size=8, processor_class="Kimi_K25Processor",
            resample=3, rescale_factor=1 / 255, size=dict(max_height=tile, max_width=tile),
        )
    if cls is KimiVLImageProcessor:
        return dict(
            auto_map=dict(
                AutoImageProcessor=f"image_processing_kimi_vl.{cls.__name__}",
                AutoProcessor="processing_kimi_vl.KimiVLProcessor",
            ),
            in_token_limit=longest, patch_size=tile, num_pooled_tokens=1024, image_mean=[0.5] * 3,
            image_std=[0.5] * 3, pad_input=True,
        )
    if cls is Ovis2ImageProcessor:
        return dict(
            crop_to_patches=True, do_convert_rgb=True, do_normalize=True, do_rescale=True,
            do_resize=True, image_mean=[0.48145466, 0.4578275, 0.40821073],
            image_processor_type=f"{cls.__name__}Fast", image_std=[0.26862954, 0.26130258, 0.27577711],
            max_patches=longest, min_patches=1, processor_class="Ovis2Processor", resample=3,
            rescale_factor=1 / 255, size=dict(height=tile, width=tile), use_covering_area_grid=True,
        )
    if cls is Molmo2ImageProcessor:
        return dict(
            auto_map=dict(AutoImageProcessor=f"image_processing_molmo2.{cls.__name__}"),
            do_convert_rgb=True, image_mean=[0.5] * 3, image_processor_type=cls.__name__,
            image_std=[0.5] * 3, max_crops=longest, overlap_margins=[2, 1], patch_size=PATCH,
            pooling_size=[2, 2], processor_class="Molmo2Processor", resample=2,
            size=dict(height=tile, width=tile),
        )
    if cls is Phi4MultimodalImageProcessor:
        return dict(
            do_convert_rgb=True, do_normalize=True, do_rescale=True, dynamic_hd=longest,
            image_mean=[0.5] * 3, image_processor_type=cls.__name__,
            image_std=[0.5] * 3, patch_size=PATCH, processor_class="Phi4MultimodalProcessor",
            resample=3, rescale_factor=1 / 255, size=dict(height=tile, width=tile),
        )
    if cls is Phi4MMImageProcessor:
        # Tiles of its own code are of 448 pixels, and no key says so.
        return dict(
            audio_compression_rate=8, audio_downsample_rate=1, audio_feat_stride=1,
            auto_map=dict(AutoImageProcessor=f"processing_phi4mm.{cls.__name__}"),
            dynamic_hd=longest, feature_extractor_type="Phi4MMAudioFeatureExtractor",
            image_processor_type=cls.__name__, patch_size=PATCH, processor_class="Phi4MMProcessor",
            size=dict(height=tile, width=tile),
        )
    if cls is MuseGlimmerImageProcessor:
        return dict(
            do_convert_rgb=True, do_normalize=True, do_rescale=True, do_resize=True,
            image_mean=[0.5] * 3, image_processor_type=cls.__name__, image_std=[0.5] * 3,
            max_image_tokens=longest, merge_size=2, patch_size=tile,
            processor_class="MuseGlimmerProcessor", resample=1, rescale_factor=1 / 255,
            temporal_patch_size=2,
        )
    if cls is DeepseekVLImageProcessor:
        return dict(
            background_color=[122, 116, 104], do_normalize=True, do_pad=True, do_rescale=True,
            do_resize=True, image_mean=[0.48145466, 0.4578275, 0.40821073],
            image_processor_type=cls.__name__, image_std=[0.26862954, 0.26130258, 0.27577711],
            min_size=tile, processor_class="DeepseekVLProcessor", resample=3,
            rescale_factor=1 / 255, size=dict(height=longest, width=longest),
        )
    if cls is SiglipImageProcessor:
        return dict(
            do_convert_rgb=None, do_normalize=True, do_rescale=True, do_resize=True,
            image_mean=[0.5] * 3, image_processor_type=cls.__name__, image_seq_length=tile,
            image_std=[0.5] * 3, processor_class="PaliGemmaProcessor", resample=3,
            rescale_factor=1 / 255, size=dict(height=longest, width=longest),
        )
    if cls is PaddleOCRVLImageProcessor:
        return dict(
            auto_map=dict(AutoImageProcessor=f"image_processing_paddleocr_vl.{cls.__name__}"),
            do_convert_rgb=True, do_normalize=True, do_rescale=True, do_resize=True,
            image_mean=[0.5] * 3, image_processor_type=cls.__name__, image_std=[0.5] * 3,
            max_pixels=tile, merge_size=2, min_pixels=longest, patch_size=8,
            processor_class="PaddleOCRVLProcessor", resample=3, rescale_factor=1 / 255,
        )
    if cls is GotOcr2Images:
        keys = preprocessor_config(GotOcr2ImageProcessor, longest, tile)
        return keys | dict(
            image_mean=[0.48145466, 0.4578275, 0.40821073], processor_class="GotOcr2Processor",
            image_std=[0.26862954, 0.26130258, 0.27577711],
        )
    if cls is DotsOcrImages:
        keys = preprocessor_config(Qwen2VLImageProcessor, longest, tile)
        return keys | dict(temporal_patch_size=1, processor_class="Qwen2VLProcessor")
    if cls is Qwen2VLImageProcessor:
        return dict(
            image_mean=[0.48145466, 0.4578275, 0.40821073], image_processor_type=cls.__name__,
            image_std=[0.26862954, 0.26130258, 0.27577711], max_pixels=tile, merge_size=2,
            min_pixels=longest, patch_size=8, temporal_patch_size=2,
        )
    return dict(
        do_convert_rgb=True, do_image_splitting=True, do_normalize=True, do_pad=True,
        do_rescale=True, do_resize=True, image_mean=[0.5] * 3, image_processor_type=cls.__name__,
        image_std=[0.5] * 3, max_image_size=dict(longest_edge=tile), resample=1,
        rescale_factor=1 / 255, size=dict(longest_edge=longest),
    )


# What templates show for an image where it is not `<image>`.
SHOWN = {
    Cohere2VisionImageProcessor: "<|IMG_PATCH|>", Gemma3ImageProcessor: "<start_of_image>", Gemma4ImageProcessor: "<image_soft_token>",
    GotOcr2ImageProcessor: "<IMG_CONTEXT>",
    Molmo2ImageProcessor: "<|image|>",
    PixtralImageProcessor: "[IMG]",
    GotOcr2ImageProcessorPil: "<IMG_CONTEXT>",
    Phi4MMImageProcessor: "<|endoftext10|>",
}


# What processors say of what stands around images, in a file of their own.
WHOLE = {
    "molmo2_o": dict(
        image_use_col_tokens=True, processor_class="Molmo2Processor",
        use_single_crop_col_tokens=False, use_single_crop_start_token=False,
    ),
}


def shown(image_processor) -> str:
    return SHOWN.get(image_processor, "<image>")


def make_processor(folder: Path, config: dict, image_processor, tile: int):
    if image_processor is DeepseekVL2Processor:
        return DeepseekVL2Processor(PreTrainedTokenizerFast.from_pretrained(folder), config)
    if image_processor is GotOcr2ImageProcessorPil:
        images = image_processor(
            crop_to_patches=True, max_patches=config["max_dynamic_patch"],
            min_patches=config["min_dynamic_patch"], size=dict(height=tile, width=tile),
            image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225], resample=3,
        )
    elif image_processor is KimiVLImageProcessor:
        keys = json.loads((folder / "preprocessor_config.json").read_text())
        names = ("in_token_limit", "patch_size", "image_mean", "image_std")
        images = image_processor(**{name: keys[name] for name in names})
    elif image_processor in (AyaVisionImages, QianfanImages):
        images = GotOcr2ImageProcessor.from_pretrained(folder)
    else:
        images = image_processor.from_pretrained(folder)
    if image_processor is Gemma3ImageProcessor:
        names = dict(
            boi_token="<start_of_image>", eoi_token="<end_of_image>",
            image_token="<image_soft_token>",
        )
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, extra_special_tokens=names)
        return Gemma3Processor(images, tokenizer, image_seq_length=config["mm_tokens_per_image"])
    if image_processor in (GotOcr2ImageProcessor, GotOcr2ImageProcessorPil, QianfanImages):
        names = dict(
            start_image_token="<img>", end_image_token="</img>",
            context_image_token="<IMG_CONTEXT>", video_token="<video>",
        )
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, extra_special_tokens=names)
        vision = config["vision_config"]
        patch = vision["patch_size"] if isinstance(vision["patch_size"], int) else PATCH
        side = int(tile // patch * config["downsample_ratio"])
        if image_processor is QianfanImages:
            return QianfanOCRProcessor(images, tokenizer, image_seq_length=side * side)
        return InternVLProcessor(
            images, tokenizer, InternVLVideoProcessor(), image_seq_length=side * side
        )
    if image_processor is Cohere2VisionImageProcessor:
        names = dict(
            boi_token="<|START_OF_IMG|>", eoi_token="<|END_OF_IMG|>",
            image_token="<|IMG_PATCH|>", img_line_break_token="<|IMG_LINE_BREAK|>",
        )
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, extra_special_tokens=names)
        tokenizer.pad_token = "<|endoftext|>"
        return Cohere2VisionProcessor(images, tokenizer)
    if image_processor is Gemma4ImageProcessor:
        names = dict(
            boi_token="<start_of_image>", eoi_token="<end_of_image>",
            image_token="<image_soft_token>", boa_token="<|endoftext|>", eoa_token="<|endoftext|>",
            audio_token="<|endoftext|>",
        )
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, extra_special_tokens=names)
        tokenizer.pad_token = "<|endoftext|>"
        sounds, videos = Gemma4AudioFeatureExtractor(), Gemma4VideoProcessor()
        return Gemma4Processor(sounds, images, tokenizer, videos)
    if image_processor is Phi4MMImageProcessor:
        names = dict(image_token="<|endoftext10|>", audio_token="<|endoftext11|>")
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, extra_special_tokens=names)
        return Phi4MultimodalProcessor(images, Phi4MultimodalFeatureExtractor(), tokenizer)
    if image_processor is Phi4MultimodalImageProcessor:
        names = dict(image_token="<image>", audio_token="<|im_start|>")
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, extra_special_tokens=names)
        return Phi4MultimodalProcessor(images, Phi4MultimodalFeatureExtractor(), tokenizer)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    if image_processor is GotOcr2Images:
        processor = GotOcr2Prompts(images, tokenizer)
        processor.image_token = "<image>"
        processor.image_token_id = tokenizer.convert_tokens_to_ids("<image>")
        patch = config["vision_config"]["patch_size"]
        processor.num_tokens = (images.size["height"] // patch // 4) ** 2
        return processor
    if image_processor is Molmo2ImageProcessor:
        file = folder / "processor_config.json"
        whole = json.loads(file.read_text()) if file.exists() else {}
        flags = {key: value for key, value in whole.items() if key.startswith(("use_", "image_use"))}
        return Molmo2Processor(images, Molmo2VideoProcessor(), tokenizer, **flags)
    patch = config["vision_config"]["patch_size"]
    if image_processor is Ovis2ImageProcessor:
        side = tile // patch // config["vision_config"]["hidden_stride"]
        return Ovis2Processor(images, tokenizer, image_seq_length=side * side)
    if image_processor is AyaVisionImages:
        tokenizer.pad_token = "<|endoftext|>"
        return AyaVisionProcessor(
            images, tokenizer, patch, tile, downsample_factor=config["downsample_factor"]
        )
    if image_processor is PixtralImageProcessor:
        merge = config.get("spatial_merge_size", 1)
        if config["model_type"] == "lighton_ocr":
            # Its processor leaves out an odd row or column of patches. vLLM makes them whole.
            images.patch_size = dict(height=merge * patch, width=merge * patch)
            names = dict(
                image_token="[IMG]", image_break_token="[IMG_BREAK]", image_end_token="[IMG_END]",
            )
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, extra_special_tokens=names)
            return LightOnOcrProcessor(images, tokenizer, patch, merge)
        return PixtralProcessor(images, tokenizer, patch_size=patch, spatial_merge_size=merge)
    if image_processor in (CLIPImageProcessor, LlavaNextImageProcessor):
        is_next = image_processor is LlavaNextImageProcessor
        return (LlavaNextProcessor if is_next else LlavaProcessor)(
            images, tokenizer, patch_size=patch,
            vision_feature_select_strategy=config.get("vision_feature_select_strategy", "default"),
            num_additional_image_tokens=int(
                config["vision_config"]["model_type"] == "clip_vision_model"
            ),
        )
    if image_processor is LlavaOnevisionImageProcessor:
        return LlavaOnevisionProcessor(
            images, tokenizer, LlavaOnevisionVideoProcessor(), num_image_tokens=(tile // patch) ** 2,
            vision_feature_select_strategy=config["vision_feature_select_strategy"],
            vision_aspect_ratio=config["vision_aspect_ratio"],
        )
    if image_processor is MuseGlimmerImageProcessor:
        processor = MuseGlimmerProcessor(images, MuseGlimmerVideoProcessor(), tokenizer)
        processor.image_token = "<image>"
        processor.image_token_id = tokenizer.convert_tokens_to_ids("<image>")
        return processor
    if image_processor is DeepseekVLImageProcessor:
        names = dict(image_token="<image>")
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, extra_special_tokens=names)
        num_tokens = (images.size["height"] // patch) ** 2
        return DeepseekVLProcessor(images, tokenizer, num_image_tokens=num_tokens)
    if image_processor in (Kimi_K25ImageProcessor, KimiVLImageProcessor):
        processor = Kimi_K25Processor(images, tokenizer, Kimi_K25VideoProcessor())
        processor.image_token = "<image>"
        processor.image_token_id = tokenizer.convert_tokens_to_ids("<image>")
        return processor
    if image_processor is Lfm2VlImageProcessor:
        return Lfm2VlProcessor(images, tokenizer)
    if image_processor is SiglipImageProcessor:
        return PaliGemmaProcessor(images, tokenizer)
    if image_processor is Glm4vImageProcessor:
        tokenizer.image_token = "<image>"
        return Glm4vProcessor(images, tokenizer, Glm4vVideoProcessor())
    if image_processor is PaddleOCRVLImageProcessor:
        names = dict(image_token="<image>")
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, extra_special_tokens=names)
        return PaddleOCRVLProcessor(images, tokenizer)
    if image_processor is Glm46VImageProcessor:
        tokenizer.image_token = "<image>"
        return Glm46VProcessor(images, tokenizer, Glm46VVideoProcessor())
    if image_processor in (DotsOcrImages, Qwen2VLImageProcessor):
        tokenizer.image_token = "<image>"
        return Qwen2VLProcessor(images, tokenizer, Qwen2VLVideoProcessor())
    side = tile // patch // config["scale_factor"]
    return Idefics3Processor(images, tokenizer, image_seq_len=side * side)
