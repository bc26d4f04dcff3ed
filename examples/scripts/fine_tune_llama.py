"""A small Llama, fine-tuned on rows of text: model and data by name, without a network.

    trainyard datasets upload rows.jsonl rows
    trainyard models upload tiny-llama-folder tiny-llama
    trainyard submit --script fine_tune_llama.py --launcher python --wall-time 10min \\
        --input model=tiny-llama,name=lab/tiny-llama --input dataset=rows,name=lab/rows

With the package datasets, `load_dataset("lab/rows")["train"]` gives the same rows.
"""

import argparse
import json
import os
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

try:
    from trainyard.run import log
except ImportError:

    def log(step, **values):
        print(step, values)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lab/tiny-llama")
    parser.add_argument("--rows", default=os.environ.get("TRAINYARD_INPUT_LAB_ROWS", "rows"))
    parser.add_argument("--steps", type=int, default=200)
    asked = parser.parse_args()

    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(asked.model)
    lines = Path(asked.rows, "data.jsonl").read_text().splitlines()
    text = "\n".join(json.loads(line)["text"] for line in lines)
    tokens = torch.tensor(list(text.encode()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(1, asked.steps + 1):
        begins = torch.randint(len(tokens) - 65, (8,))
        batch = torch.stack([tokens[begin : begin + 64] for begin in begins])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(step=step, loss=loss.item())
    model.save_pretrained(os.environ.get("TRAINYARD_OUTPUT", "tuned"))
    print(f"{asked.steps} steps, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
