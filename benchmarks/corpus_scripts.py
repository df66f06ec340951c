"""The table of the corpus: which public scripts, with which arguments, and what is known of them.

Data, not code: `corpus.py` checks the scripts out, prepares and runs them. The
times are medians of the processor time of plain iterations with 0 workers where
there is a choice and OMP_NUM_THREADS=1, on a two-core AVX-512 machine: a size, not
a benchmark. Wall time is longer where other work runs beside it.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Repository:
    """A public repository at one commit.

    Attributes:
        name: `owner/name`.
        commit: the commit that is checked out.
        folder: where below the corpus root.
    """

    name: str
    commit: str
    folder: str


@dataclass(frozen=True)
class Script:
    """One script of the corpus, and what is known about it.

    Attributes:
        name: what it is called here.
        repository: where it comes from.
        path: the script, relative to `directory`.
        directory: the working directory, relative to the repository.
        arguments: its arguments as shell words; `{workers}` stands for the worker count.
        kind: how its loop looks.
        notes: what detection has to cope with, and how the script is satisfied.
        data: pairs of a data set of `corpus_data` and the folder to write it to,
            relative to `directory`.
        loader: whether a DataLoader feeds it.
        optimizers: how many torch optimizers step.
        backwards: backward calls an iteration (for LBFGS: of one closure).
        workers: worker counts that its arguments allow; empty when there is no option.
        fixed_workers: the count written into the script where there is no option;
            -1 for the number of processors.
        iterable: whether the data set is an IterableDataset.
        own: what the script does itself, of "autocast", "scaler", "clip",
            "accumulation", "scheduler", "tensorboard", "wandb", "fork", "stty".
        seeds_itself: whether two plain runs agree without a seed from the harness.
        environment: variables; `{corpus}` and `{repository}` are filled in, and
            PYTHONPATH and PATH are put in front of the present ones.
        iteration_ms: about how much processor time a plain iteration takes.
        iterations: about how many iterations a whole run has.
        slow: iterations take seconds; left out unless it is named.
    """

    name: str
    repository: Repository
    path: str
    directory: str
    arguments: str
    kind: str
    notes: str = ""
    data: tuple[tuple[str, str], ...] = ()
    loader: bool = True
    optimizers: int = 1
    backwards: int = 1
    workers: tuple[int, ...] = ()
    fixed_workers: int = 0
    iterable: bool = False
    own: tuple[str, ...] = ()
    seeds_itself: bool = True
    environment: dict[str, str] = field(default_factory=dict)
    iteration_ms: float = 0.0
    iterations: int = 0
    slow: bool = False

    def argv(self, workers: int | None = None) -> list[str]:
        """Return the script and its arguments, with a worker count it allows.

        Raises:
            ValueError: the script has no such worker count to offer.
        """
        if workers is None:
            workers = self.workers[0] if self.workers else 0
        elif workers not in (self.workers or (self.fixed_workers,)):
            raise ValueError(f"{self.name} cannot be run with {workers} workers")
        return [self.path, *shlex.split(self.arguments.replace("{workers}", str(workers)))]

    @property
    def seed(self) -> int | None:
        """The seed that the harness has to give, None for a script that seeds itself."""
        return None if self.seeds_itself else 1


EXAMPLES = Repository(
    "pytorch/examples", "77f55b912142e11fcfdf5b530231fb9c52f181e8", "pytorch-examples"
)
# The vision transformer was removed from the examples one commit later.
EXAMPLES_2024 = Repository(
    "pytorch/examples", "2d725b6ab255e05c55e0b08925f06f171aaedc0c", "pytorch-examples-2024"
)
NANOGPT = Repository("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291", "nanoGPT")
MINGPT = Repository("karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26", "minGPT")
LLAMA2 = Repository("karpathy/llama2.c", "350e04fe35433e6d2941dce5a1f53308f87058eb", "llama2.c")
CIFAR10 = Repository(
    "kuangliu/pytorch-cifar", "49b7aa97b0c12fe0d4054e670403a16b6b834ddd", "pytorch-cifar"
)
CIFAR100 = Repository(
    "weiaicunzai/pytorch-cifar100", "11d8418f415b261e4ae3cb1ffe20d06ec95b98e4", "pytorch-cifar100"
)
UNET = Repository(
    "milesial/Pytorch-UNet", "21d7850f2af30a9695bbeea75f3136aa538cfc4a", "Pytorch-UNet"
)
TUTORIAL = Repository(
    "yunjey/pytorch-tutorial", "0500d3df5a2a8080ccfccbc00aca0eacc21818db", "pytorch-tutorial"
)

# torchvision's CIFAR compares checksums, which no other data can have: see hooks/sitecustomize.py.
STANDIN = {"STANDIN_DATA": "1"}
MNIST = (("mnist", "../data"),)
JPEGS = (("image_folder", "../data"),)
WIKITEXT = (("wikitext", "data/standin"),)

SCRIPTS: tuple[Script, ...] = (
    Script(
        "imagenet",
        EXAMPLES,
        "main.py",
        "imagenet",
        "-a mobilenet_v3_small -b 8 -j {workers} --seed 1 --epochs 5 ../data/imagenet",
        "image classification over folders of JPEG files",
        "Random crops: items draw from the worker's generator, so another worker count is other "
        "training. loss.item() before backward. Validation and a checkpoint after each epoch. "
        "pin_memory without an accelerator warns.",
        data=JPEGS,
        workers=(0, 2),
        own=("scheduler",),
        iteration_ms=179,
        iterations=1000,
    ),
    Script(
        "mnist",
        EXAMPLES,
        "main.py",
        "mnist",
        "--epochs 14",
        "textbook loop, a test loader after each epoch",
        "No shuffling on a CPU. loss.item() in every tenth iteration only. Adadelta.",
        data=MNIST,
        own=("scheduler",),
        iteration_ms=96,
        iterations=2800,
    ),
    Script(
        "mnist_rnn",
        EXAMPLES,
        "main.py",
        "mnist_rnn",
        "--epochs 14",
        "the same with an LSTM",
        "Iterations of 13 ms, of which the data set is a good part.",
        data=MNIST,
        own=("scheduler",),
        iteration_ms=13,
        iterations=2800,
    ),
    Script(
        "mnist_forward_forward",
        EXAMPLES,
        "main.py",
        "mnist_forward_forward",
        "--train_size 2000 --test_size 1000 --epochs 500",
        "one batch by next(iter(loader)), then 500 full-batch steps of each layer in turn",
        "The loader is read once, so an iteration is an optimizer step. Each layer makes its own "
        "Adam, only one steps for a long time. Layers call self.forward(), which passes __call__ "
        "by, and override Module.train with another meaning; they sit in a plain list, so the "
        "outer module owns no parameter. --seed is not used by the script.",
        data=(("mnist", "data"),),
        optimizers=2,
        seeds_itself=False,
        iteration_ms=87,
        iterations=1000,
    ),
    Script(
        "vae",
        EXAMPLES,
        "main.py",
        "vae",
        "--epochs 20",
        "random numbers in forward, tuple output, loss summed over the batch",
        "Options are parsed and loaders built at import, above the main guard. A sampled grid is "
        "decoded and saved after each epoch by model.decode, not by __call__.",
        data=MNIST,
        iteration_ms=18,
        iterations=2000,
    ),
    Script(
        "siamese",
        EXAMPLES,
        "main.py",
        "siamese_network",
        "--batch-size 8 --epochs 2",
        "two inputs, and items drawn with Python's random inside the data set",
        "The script seeds torch but not random, so it does not repeat itself without help, and "
        "items depend on the order in which they are made. The index only says same or different.",
        data=MNIST,
        own=("scheduler",),
        seeds_itself=False,
        iteration_ms=141,
        iterations=3200,
    ),
    Script(
        "dcgan",
        EXAMPLES,
        "main.py",
        "dcgan",
        "--dataset folder --dataroot ../data/imagenet/train --outf out --workers {workers} "
        "--batchSize 16 --ngf 16 --ndf 16 --niter 5 --manualSeed 1",
        "a GAN: two models, two optimizers, three backward passes an iteration",
        "All at top level, no main guard. The discriminator runs three times an iteration. Sets "
        "cudnn.benchmark. Two .item() between the backward passes. Deterministic JPEG transforms.",
        data=JPEGS,
        optimizers=2,
        backwards=3,
        workers=(0, 2),
        iteration_ms=86,
        iterations=500,
    ),
    Script(
        "super_resolution",
        EXAMPLES,
        "main.py",
        "super_resolution",
        "--upscale_factor 4 --batchSize 4 --testBatchSize 10 --nEpochs 20 --threads {workers}",
        "short epochs, and the whole model pickled after each",
        "All at top level, no main guard. torch.save(model) must not meet hooks. 50 iterations an "
        "epoch, so pools start often. Files in the order of os.listdir: an overlay that lists "
        "them in another order changes the training.",
        data=(("bsds300", "."),),
        workers=(0, 2),
        iteration_ms=101,
        iterations=1000,
    ),
    Script(
        "time_sequence",
        EXAMPLES,
        "train.py",
        "time_sequence_prediction",
        "--steps 200",
        "LBFGS with a closure, float64, no loader, a plot after each step",
        "An iteration is a step of up to 25 closures of 30 ms. A forward of a thousand steps "
        "without gradients and a PDF plot lie between two steps. Once it has converged a step is "
        "one closure. torch.load of a numpy array needs TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD.",
        data=(("sine_waves", "."),),
        loader=False,
        environment={"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"},
        iteration_ms=29,
        iterations=200,
    ),
    Script(
        "regression",
        EXAMPLES,
        "main.py",
        "regression",
        "",
        "no loader, no optimizer: parameters are changed by hand",
        "Ends by itself when the loss is small, within a second. Nothing is seeded. The right "
        "verdict is that there is nothing to tune.",
        loader=False,
        optimizers=0,
        seeds_itself=False,
        iteration_ms=0.2,
        iterations=300,
    ),
    Script(
        "lm_lstm",
        EXAMPLES,
        "main.py",
        "word_language_model",
        "--data ./data/standin/wikitext-2 --model LSTM --use-optimizer --lr 0.001 --epochs 10",
        "no loader, hidden state carried from batch to batch",
        "The last batch of an epoch is shorter. Everything at top level inside try/except "
        "KeyboardInterrupt; afterwards model.pt is read back. Validation through the same root.",
        data=WIKITEXT,
        loader=False,
        own=("clip",),
        iteration_ms=108,
        iterations=1390,
    ),
    Script(
        "lm_transformer",
        EXAMPLES,
        "main.py",
        "word_language_model",
        "--data ./data/standin/wikitext-2 --model Transformer --use-optimizer --lr 0.001 "
        "--epochs 10",
        "no loader, a root that subclasses nn.Transformer and keeps a decoder it does not use",
        "self.decoder is replaced by a Linear; the mask is kept on the module and made again when "
        "the length changes (last batch of an epoch, validation), which is a recompilation.",
        data=WIKITEXT,
        loader=False,
        own=("clip",),
        iteration_ms=120,
        iterations=1390,
    ),
    Script(
        "lm_by_hand",
        EXAMPLES,
        "main.py",
        "word_language_model",
        "--data ./data/standin/wikitext-2 --model GRU --epochs 10",
        "the script's default: no loader and no optimizer, p.data.add_ by hand",
        "Backward passes go on for minutes, but nothing of torch marks the end of an iteration.",
        data=WIKITEXT,
        loader=False,
        optimizers=0,
        own=("clip",),
        iteration_ms=118,
        iterations=1390,
    ),
    Script(
        "vision_transformer",
        EXAMPLES_2024,
        "main.py",
        "vision_transformer",
        "--img-size 32 --patch-size 4 --latent-size 128 --num-heads 4 --num-encoders 4 "
        "--batch-size 8 --epochs 2 --lr 0.001",
        "a class owns the loop, tqdm round the loader",
        "Validation runs without no_grad and keeps graphs, but never calls backward. The batch "
        "size is part of the parameters' shape, so it cannot change. torch.hub's tqdm starts a "
        "monitor thread. No seed.",
        data=(("cifar10", "dataset"),),
        seeds_itself=False,
        environment=STANDIN,
        iteration_ms=61,
        iterations=2500,
    ),
    Script(
        "nanogpt",
        NANOGPT,
        "train.py",
        ".",
        "--dataset=standin_char --device=cpu --compile=False --dtype=float32 --n_layer=4 "
        "--n_head=4 --n_embd=128 --block_size=64 --batch_size=8 --gradient_accumulation_steps=2 "
        "--eval_interval=500 --eval_iters=5 --max_iters=2000",
        "memory-mapped batches, no loader, gradient accumulation",
        "Options set globals by exec at top level. Two micro-batches an iteration, the next one "
        "fetched between forward and backward. A GradScaler that is off, clipping, learning rate "
        "written into param_groups each iteration. AdamW(fused) only on a GPU.",
        data=(("characters", "data"),),
        loader=False,
        backwards=2,
        own=("scaler", "clip", "accumulation"),
        iteration_ms=104,
        iterations=2000,
    ),
    Script(
        "llama2",
        LLAMA2,
        "train.py",
        ".",
        "--vocab_source=custom --vocab_size=512 --device=cpu --compile=False --dtype=float32 "
        "--dim=96 --n_layers=3 --n_heads=4 --n_kv_heads=4 --max_seq_len=64 --batch_size=8 "
        "--gradient_accumulation_steps=2 --eval_interval=500 --eval_iters=5 --max_iters=2000",
        "an endless IterableDataset behind a generator, next() for each micro-batch",
        "The loader is made inside the generator, again for each evaluation, and never ends. The "
        "loss is read from model.last_loss, not from the output. With workers each would read the "
        "same shards in another order: another worker count is other data.",
        data=(("token_shards", "data"),),
        backwards=2,
        iterable=True,
        own=("scaler", "clip", "accumulation"),
        iteration_ms=72,
        iterations=2000,
    ),
    Script(
        "mingpt_chargpt",
        MINGPT,
        "chargpt.py",
        "projects/chargpt",
        "--model.model_type=gpt-nano --data.block_size=64 --trainer.batch_size=16 "
        "--trainer.num_workers={workers} --trainer.max_iters=2000",
        "next(data_iter), a sampler of 10**10 draws, a callback that samples and saves",
        "The sampler must never be turned into a list. At iterations 0, 500, ... the callback "
        "generates 500 characters with the root in eval mode and saves it. Loss and batch hang "
        "on the trainer object.",
        data=(("plain_text", "."),),
        workers=(0, 2),
        own=("clip",),
        environment={"PYTHONPATH": "{repository}"},
        iteration_ms=40,
        iterations=2000,
    ),
    Script(
        "unet",
        UNET,
        "train.py",
        ".",
        "--epochs 5 --batch-size 1 --scale 0.5 --bilinear",
        "dict batches, channels_last, validation five times inside an epoch",
        "Workers as many as processors, a Pool().imap while the data set is made (forks), W&B in "
        "disabled mode, tqdm's monitor thread, three loss.item() an iteration, RMSprop(foreach), "
        "a scheduler stepped by the validation score, a try/except round log calls.",
        data=(("carvana", "data"),),
        fixed_workers=-1,
        own=("scaler", "clip", "scheduler", "wandb", "fork"),
        seeds_itself=False,
        environment={"WANDB_MODE": "disabled"},
        iteration_ms=310,
        iterations=1440,
    ),
    Script(
        "unet_amp",
        UNET,
        "train.py",
        ".",
        "--epochs 5 --batch-size 1 --scale 0.5 --bilinear --amp",
        "the same with the script's own autocast",
        "torch.autocast('cpu', enabled=True) round forward and loss, bf16 on a CPU, and a CUDA "
        "GradScaler that turns itself off there.",
        data=(("carvana", "data"),),
        fixed_workers=-1,
        own=("autocast", "scaler", "clip", "scheduler", "wandb", "fork"),
        seeds_itself=False,
        environment={"WANDB_MODE": "disabled"},
        iteration_ms=203,
        iterations=1440,
    ),
    Script(
        "cifar100",
        CIFAR100,
        "train.py",
        ".",
        "-net squeezenet -b 16",
        "three TensorBoard points an iteration, a warm-up scheduler inside the loop",
        "Four workers fixed. writer.add_graph traces the root before training. Reads "
        "para.grad.norm() after the step. Folders carry the time of the start in their names.",
        data=(("cifar100", "data"),),
        fixed_workers=4,
        own=("scheduler", "tensorboard"),
        seeds_itself=False,
        environment=STANDIN,
        iteration_ms=116,
        iterations=100000,
    ),
    Script(
        "cifar10",
        CIFAR10,
        "main.py",
        ".",
        "",
        "the well-known CIFAR script, at top level",
        "Batch size 128 and a heavy model are fixed: 8 s of processor time an iteration, so a "
        "search within a small budget ends early. Two workers fixed. utils.py runs `stty size` at "
        "import and fails without a terminal: a stub is on PATH.",
        data=(("cifar10", "data"),),
        fixed_workers=2,
        own=("scheduler", "stty"),
        seeds_itself=False,
        environment={**STANDIN, "PATH": "{corpus}/_bin"},
        iteration_ms=8500,
        iterations=15800,
        slow=True,
    ),
    Script(
        "tutorial_resnet",
        TUTORIAL,
        "main.py",
        "tutorials/02-intermediate/deep_residual_network",
        "",
        "a CIFAR ResNet, everything at top level",
        "No seed, no options. Random crops drawn in the main process. The learning rate is written "
        "into param_groups. Never in eval mode until the end of 80 epochs.",
        data=(("cifar10", "../../data"),),
        seeds_itself=False,
        environment=STANDIN,
        iteration_ms=305,
        iterations=8000,
    ),
    Script(
        "tutorial_gan",
        TUTORIAL,
        "main.py",
        "tutorials/03-advanced/generative_adversarial_network",
        "",
        "a GAN of two nn.Sequential, both gradients dropped between the two steps",
        "The generator's graph is built in both halves; the batch size is used as a constant, so "
        "it cannot change. No seed, no options, all at top level.",
        data=(("mnist", "../../data"),),
        optimizers=2,
        backwards=2,
        seeds_itself=False,
        iteration_ms=29,
        iterations=25600,
    ),
)
