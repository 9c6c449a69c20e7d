"""torch.compile with frozen weights and max-autotune, on the PyTorch module that a model of the zoo was exported from."""

import torch
import torch._inductor.config as inductor
from _turns import serve
from benchmarks.zoo import find
from benchmarks.zoo.building import make_sample


def prepare(model, feeds):
    inductor.freezing = True
    (entry,) = find([model.parent.name])
    module = make_sample(entry).model
    if not isinstance(module, torch.nn.Module):
        raise TypeError("this model of the zoo is not a PyTorch module")
    compiled = torch.compile(module.eval(), mode="max-autotune")
    tensors = [torch.from_numpy(x) for x in feeds.values()]

    def run():
        with torch.inference_mode():
            found = compiled(*tensors)
        return [
            y.numpy()
            for y in (found.values() if isinstance(found, dict) else found if isinstance(found, tuple) else [found])
        ]

    return run, torch.__version__, {}


serve(prepare)
