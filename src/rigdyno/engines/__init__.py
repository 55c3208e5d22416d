"""Libraries that are useful without Rigdyno: private training, blockwise inference and segmentation.

They import torch freely, but of Rigdyno only base/; segmentation also imports blockwise.
"""
