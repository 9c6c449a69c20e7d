"""OpenVINO with its defaults for latency. float32 is computed as float32, as by all contenders but those of an error budget."""

import openvino as ov
from _turns import serve


def prepare(model, feeds):
    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = ov.Core().compile_model(model, "CPU", config)
    request, ports = compiled.create_infer_request(), list(compiled.outputs)

    def run():
        found = request.infer(feeds, share_inputs=True, share_outputs=True)
        return [found[port] for port in ports]

    return run, ov.__version__.partition("-")[0], {}


serve(prepare)
