"""The same with a callback of Stoker's."""

from train_lightning import fit, read_options

from stoker.callbacks.lightning import LightningCallback

if __name__ == "__main__":
    options = read_options()
    callback = LightningCallback(every_n_steps=options.save_steps)
    fit(options, callback.ckpt_path, callback)
