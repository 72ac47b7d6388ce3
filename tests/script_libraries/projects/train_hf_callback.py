"""The same with a callback of Stoker's."""

from train_hf import make_trainer

from stoker.callbacks.huggingface import HuggingFaceCallback

if __name__ == "__main__":
    callback = HuggingFaceCallback()
    make_trainer(callback).train(resume_from_checkpoint=callback.resume_from)
    print("end", flush=True)
